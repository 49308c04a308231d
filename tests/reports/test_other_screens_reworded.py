"""What watch, compare, gate and the doubts of a run show does not hang on how a fact is worded."""

from __future__ import annotations

import ast
import re
import string
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from compared_pairs import run_with
from partial_recordings import recording
from shown import terminal

from torchdoctor.advice import catalogue
from torchdoctor.compare import compare
from torchdoctor.gate.answer import Basis, answer
from torchdoctor.reports import (
    compared_facts,
    gate_facts,
    remarks,
    trial_facts,
    verdict,
    watched,
    watched_facts,
)
from torchdoctor.reports import terminal as terminal_writer
from torchdoctor.reports.formats import rendered
from torchdoctor.runs.report_assembly import RunResults, assemble
from torchdoctor.runs.run_settings import RunSettings
from torchdoctor.schema import (
    Environment,
    Evidence,
    Finding,
    FixSet,
    Interval,
    RankTime,
    Recommendation,
    Refused,
    Trial,
    WorkloadRecord,
    as_remark,
    fact,
    within,
)
from torchdoctor.schema.gate import GateMetric, GateReport
from torchdoctor.schema.trials import OUT_OF_TIME
from torchdoctor.schema.watched import Alert, ExplainedFact, Period, WatchSummary
from torchdoctor.steps import evidence
from torchdoctor.trials.outcome import TrialResults

PACKAGE = Path(__file__).parent.parent.parent / "torchdoctor"
TABLES = {
    "watch": (watched_facts.SENTENCES, watched_facts.CAUSES, remarks.RUNS),
    "compare": (compared_facts.ANSWERS, compared_facts.REMARKS, compared_facts.BASES),
    "gate": (gate_facts.ANSWERS, remarks.SENTENCES),
    "trials": (trial_facts.SENTENCES, remarks.NUMERICS),
}
# Rooms that make doubts.
WEAKENS = ("launch", "bench", "clusters", "observe", "runs", "trials", "advice")
NAME = re.compile(r"<[\w-]+>")
SINCE = {"step": 100, "since_s": 1e9, "rank": None}
GROWN = fact("phase-grown", phase="wait", before_s=0.01, after_s=0.09)
COLLECTOR = Finding(check="gc-pauses", evidence=[fact("share", share=0.2)])
SLOWER = Alert(
    t_unix_s=1e9,
    step=100,
    kind="slower",
    fact=fact("training-slower", slower=1.4, **SINCE),
    why=GROWN,
    finding=COLLECTOR,
    cause="gc-pauses",
)


def watched_run(cause: ExplainedFact | None, ending: list[Evidence]) -> str:
    phases = {"wait": 30.0, "forward": 70.0}
    known = {} if cause is None else {"median_step_s": 0.1, "best_step_s": 0.09, "steps": 1000}
    summary = WatchSummary(
        folder="/w",
        status="ended",
        ending=ending,
        step=[fact("step-optimizer", name="AdamW"), fact("no-gradient")],
        command=["python", "train.py"],
        training_s=100.0,
        phases_s=phases,
        periods=[
            Period(
                t_unix_s=1e9, first_step=1, last_step=1000, step_s=0.1, samples_per_s=None,
                phases_s=dict.fromkeys(watched_facts.PHASE_NAMES, 0.01),
            )
        ],
        drift=1.4,
        drift_cause=GROWN,
        ranks=[RankTime(rank=x, path="", step_s=0.1) for x in (0, 1)],
        slow_rank=ExplainedFact(fact=fact("ranks-wait", share=0.2, rank=1, host="node")),
        alerts=[SLOWER],
        cause=cause,
        **known,
    )  # fmt: skip
    return terminal_writer.render(watched.document(summary), 100, True)


def gated(
    low: float, high: float, verdict: str, basis: Basis, doubts: Sequence[Evidence] = ()
) -> str:
    ratio = Interval(low=low, estimate=(low * high) ** 0.5, high=high)
    row = GateMetric(name="step_time", unit="s/sample", ratio=ratio, tolerance=0.02)
    report = GateReport(
        workload=WorkloadRecord(command=[]),
        environment=Environment(),
        reference="main",
        verdict=verdict,
        answer=answer([row], verdict, "main", basis),
        metrics=[row],
        remarks=[as_remark(doubt, of="main") for doubt in doubts],
    )
    return terminal(gate_facts.with_sentence(report))


def doubted_run(doubts: Sequence[Evidence]) -> str:
    report = assemble(
        RunResults(
            recording=replace(recording(), doubts=list(doubts)),
            settings=RunSettings(),
            warnings=doubts[:1],
        )
    )
    return rendered(report, "text")


def tried_run(no_trials: Evidence | None = None) -> str:
    """Return the details of a run with a row for each reason that a trial may have."""
    choice = fact("treats-cost", check="data-wait", share=0.6, share_of="")
    unclear = Trial(
        fixes=FixSet.of("pin-memory"),
        speedup=Interval(estimate=1.1, low=0.9, high=1.3),
        pairs=1,
        p_helps=0.5,
        choice=choice,
        why=[fact("one-pair"), fact("pair-not-counted", why=within(fact("program-failed")))],
    )
    untried = Trial(
        fixes=FixSet.of("tf32"), p_helps=0.4, expected=1.1,
        choice=fact(OUT_OF_TIME), why=[fact(OUT_OF_TIME), fact("long-first-launch", once_s=40.0)],
    )  # fmt: skip
    failed = Trial(
        fixes=FixSet.of("torch-compile"), verdict="failed",
        choice=fact("failed"), why=[fact("block-given-up")],
    )  # fmt: skip
    data = within(fact("samples-repeated", repeated=8, samples=64))
    changed = Trial(
        fixes=FixSet.of("cudnn-benchmark"), p_helps=0.5, choice=choice, numerics="changed",
        numerics_why=fact("data-changed", data=data),
    )  # fmt: skip
    rows = [unclear, untried, failed, changed]
    return rendered(
        assemble(
            RunResults(
                recording=recording(),
                settings=RunSettings(),
                trials=TrialResults(trials=rows, noise_floor=None, recommendation=Recommendation()),
                refused=[Refused(fixes=FixSet.of("ddp"), why=fact("fewer-than-two-gpus"))],
                no_trials=no_trials,
            )
        ),
        "text",
    )


DOUBTS = [
    fact("nodes-measured", nodes=[{"node": "a", "pairs": 2}, {"node": "b", "pairs": 1}]),
    fact("files-changed-in-sandbox", files=4, named=["/a", "/b"], more=2, sandbox="overlay"),
    fact("share-partly-hidden", removed="its data loader", profiled=0.4, gain=[0.9, 1.1, 1.3]),
    fact("dataset-changed-in-workers", changes=[{"name": "self.x", "file": "/a.py", "line": 8}]),
    fact("profiled-steps-differ", profiled_s=0.4, real_s=0.1, profiled_wait=None, real_wait=None),
]
COST = ExplainedFact(fact=fact("largest-cost", phase="wait", share=0.3))
ENDED = [fact("program-ended", at_s=1e9)]
LONG_STEPS = Basis(mean=Interval(low=1.1, estimate=1.2, high=1.3))
SCREENS: dict[str, Callable[[], str]] = {
    "watch slower": lambda: watched_run(SLOWER, ENDED),
    "watch even": lambda: watched_run(COST, ENDED),
    "watch without a step": lambda: watched_run(None, [*ENDED, fact("no-step")]),
    "compare slower": lambda: terminal(compare(run_with(), run_with(1.4))),
    "compare the same": lambda: terminal(compare(run_with(), run_with())),
    "compare unclear": lambda: terminal(compare(run_with(), run_with(1.03))),
    "gate passed": lambda: gated(0.99, 1.01, "not slower", Basis()),
    "gate unseen": lambda: gated(0.9, 1.2, "not slower", Basis(decides=fact("interrupted"))),
    "gate long steps": lambda: gated(0.99, 1.01, "not slower", LONG_STEPS),
    "gate doubted": lambda: gated(0.99, 1.01, "not slower", Basis(), DOUBTS),
    "run doubted": lambda: doubted_run(DOUBTS),
    "run tried": tried_run,
    "run without trials": lambda: tried_run(fact("too-few-steps")),
    "gate undecided": lambda: gated(0.9, 1.2, "inconclusive", Basis(why=fact("interrupted"))),
}


def reword(monkeypatch: pytest.MonkeyPatch, begin: str) -> None:
    """Let each template be the name of its fact, behind these words."""
    for tables in TABLES.values():
        for table in tables:
            for ident in table:
                monkeypatch.setitem(table, ident, f"{begin}<{ident}>")


@pytest.mark.parametrize("screen", SCREENS)
def test_the_same_facts_stand_at_the_same_places_however_they_are_worded(
    screen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    worded = SCREENS[screen]()
    reword(monkeypatch, "")
    named = NAME.findall(SCREENS[screen]())
    assert named and not NAME.findall(worded)
    reword(monkeypatch, "At a.py:3, 99 % of it. No difference, not tried: ")
    # A long sentence is cut on the first screen: the names that are left keep their order.
    again = NAME.findall(SCREENS[screen]())
    assert list(dict.fromkeys(again)) == list(dict.fromkeys(named))


IN_PROGRAM = ("refuse", "set_reason", "give_up", "reason")  # calls in the user's process
MAKES_FACT = ("fact", "_remark", "changed", "grown", "NotKeptError", *IN_PROGRAM)


def made_facts(room: str) -> Iterator[str]:
    """Yield the names of the facts and remarks that the files of a room make."""
    for path in (PACKAGE / room).rglob("*.py"):
        yield from facts_made_by(path)


def facts_made_by(path: Path) -> Iterator[str]:
    for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(call, ast.Call):
            continue
        called = getattr(call.func, "id", getattr(call.func, "attr", ""))
        named = [x.value for x in call.keywords if x.arg == "fact"]
        if called in MAKES_FACT and call.args:
            named.append(call.args[0])
        if called == "changed_itself":
            named.append(call.args[1])
        for node in named:
            yield from facts_named(node)


def facts_named(node: ast.expr) -> Iterator[str]:
    parts = [node.body, node.orelse] if isinstance(node, ast.IfExp) else [node]
    yield from (x.value for x in parts if isinstance(x, ast.Constant) and isinstance(x.value, str))


@pytest.mark.parametrize("room", ["watch", "compare", "gate"])
def test_each_fact_has_a_template(room: str) -> None:
    known = set().union(*TABLES[room])
    made = set(made_facts(room))
    assert made and made <= known, made - known


def test_each_kind_of_step_has_a_template() -> None:
    assert {f"step-{kind}" for kind in evidence.KINDS} <= set(watched_facts.STEPS)


@pytest.mark.parametrize("room", WEAKENS)
def test_each_doubt_has_a_template(room: str) -> None:
    """Where a run, a launch, a search or a node gave reason to doubt, the report has the words."""
    made = set(made_facts(room))
    assert made and all(verdict.template(None, ident) for ident in made), made


# Facts whose `reason` or `message` is the text of an error, of the kernel, or of the program.
SAID_BY_OTHERS = {
    "because",
    "could-not-apply",
    "file-left-out",
    "message",
    "no-step-watched",
    "not-writable",
    "profile-failed",
    "refused-in-program",
    "still-pending",
    "waits-in-one-order",
}
MAKERS = (*WEAKENS, "cli", "compare", "gate", "machine", "trace", "watch")


@pytest.mark.parametrize("room", MAKERS)
def test_what_a_fact_states_is_not_worded_where_it_is_made(room: str) -> None:
    """A reader of the JSON cannot tell one reason from another by a sentence in a value."""
    for path in (PACKAGE / room).rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            maker = getattr(call.func, "id", "") if isinstance(call, ast.Call) else ""
            if maker not in ("fact", "message"):
                continue
            stated = [part for x in (call.args, call.keywords) for y in x for part in ast.walk(y)]
            texts = [x.value for x in stated if isinstance(x, ast.Constant)]
            assert not any(" " in x for x in texts if isinstance(x, str)), ast.unparse(call)
            if {"reason", "message"} & {value.arg for value in call.keywords}:
                assert isinstance(call.args[0], ast.Constant), ast.unparse(call)
                assert call.args[0].value in SAID_BY_OTHERS, ast.unparse(call)


@pytest.mark.parametrize("file", sorted((PACKAGE / "fixes").rglob("*.py")), ids=lambda x: x.stem)
def test_each_reason_of_a_fix_has_a_template(file: Path) -> None:
    """A fix has its own in its file; what several say is worded in the reports."""
    ident = file.stem.replace("_", "-")
    spec = catalogue.fixes().get(ident) or catalogue.ceilings().get(ident)
    of_file = catalogue.fixes().values() if spec is None else [spec]  # a part of several
    own = {ident for fix in of_file for ident in fix.sentences}
    for made in facts_made_by(file):
        assert made in own or verdict.template(None, made), made


def test_each_reason_given_in_the_user_s_process_has_a_template() -> None:
    """And each template is of one that is given there: by the probe, or by several fixes."""
    by_probe = set(made_facts("probe"))
    assert by_probe and by_probe <= set(remarks.IN_PROGRAM), by_probe - set(remarks.IN_PROGRAM)
    assert set(remarks.IN_PROGRAM) <= by_probe | set(made_facts("fixes"))


def test_no_fix_words_what_all_fixes_use_in_its_own_way() -> None:
    """A second loader gave up a larger batch, which would have told another reason of its own."""
    for ident, spec in (catalogue.fixes() | catalogue.ceilings()).items():
        assert not set(spec.sentences) & set(remarks.IN_PROGRAM), ident


@pytest.mark.parametrize("file", sorted((PACKAGE / "fixes").rglob("*.py")), ids=lambda x: x.stem)
def test_a_reason_in_the_user_s_process_holds_the_values_of_its_template(file: Path) -> None:
    ident = file.stem.replace("_", "-")
    spec = catalogue.fixes().get(ident) or catalogue.ceilings().get(ident)
    sentences = dict(remarks.IN_PROGRAM) | dict(spec.sentences if spec is not None else {})
    for call in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        called = getattr(call.func, "attr", "") if isinstance(call, ast.Call) else ""
        if called not in IN_PROGRAM or not isinstance(call, ast.Call) or not call.args:
            continue
        for name in facts_named(call.args[0]):
            wanted = {field for _, field, _, _ in string.Formatter().parse(sentences[name])}
            given = {keyword.arg for keyword in call.keywords}
            assert wanted - {None} <= given, (name, wanted, given)


@pytest.mark.parametrize("room", ["watch", "compare", "gate", "bench", "advice"])
def test_no_code_reads_a_sentence(room: str) -> None:
    """`watch` says an alert on the terminal as it is told; nothing else looks at one."""
    reads = [
        path.name
        for path in (PACKAGE / room).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr == "sentence"
    ]
    assert set(reads) <= {"beside.py"}
