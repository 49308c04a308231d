"""What a gate says of what it measured, and of the time that it would have needed. No processes."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from observed_program import SEEN

from torchdoctor.bench.pair_times import Estimator
from torchdoctor.gate.answer import Basis, answer
from torchdoctor.gate.decision import FAIL_FINAL, decides, pairs_for, state, too_few_pairs
from torchdoctor.gate.figures import Measured
from torchdoctor.gate.gate_run import NEW, GateRun
from torchdoctor.gate.session import Observed
from torchdoctor.gate.settings import GateSettings
from torchdoctor.launch.launch_spec import UNTOUCHED
from torchdoctor.reports import gate, terminal
from torchdoctor.reports.gate_facts import with_sentence
from torchdoctor.schema import (
    Environment,
    Evidence,
    Interval,
    LaunchTiming,
    Pair,
    Workload,
    WorkloadRecord,
)
from torchdoctor.schema.gate import GateMetric, GateReport
from torchdoctor.schema.students_t import t_quantile

NOT_SEEN = "not seen well enough"  # a verdict of the step time, as in gate.json


def time_row(low: float, high: float, tolerance: float = 0.02) -> GateMetric:
    ratio = Interval(estimate=math.sqrt(low * high), low=low, high=high)
    return GateMetric(
        name="step_time",
        reference=0.01,
        new=0.01,
        unit="s/sample",
        ratio=ratio,
        tolerance=tolerance,
        verdict=state("not slower", ratio, tolerance),
    )


def worded(facts: list[Evidence], rows: Sequence[GateMetric] = ()) -> str:
    """A gate's answer in words."""
    report = GateReport(
        workload=WorkloadRecord(command=[]),
        environment=Environment(),
        reference="main",
        verdict="not slower",
        answer=facts,
        metrics=list(rows),
    )
    return with_sentence(report).sentence


def compared(rows: list[GateMetric], verdict: str) -> str:
    return worded(answer(rows, verdict, "main"), rows)


def named_as_worse(rows: list[GateMetric]) -> tuple[list[str], list[str]]:
    """The rows that fail, and those of them whose ratio is told."""
    worse = answer(rows, "slower", "main")[0]
    assert worse.fact == "worse"
    return worse.values["names"], worse.values["with_times"]


def figures_in(said: str) -> list[str]:
    """The figures of a sentence in their order, with their units."""
    return re.findall(r"\d+(?:\.\d+)?(?: (?:ms|GB|%))?", said)


def test_a_pass_says_what_it_could_not_have_seen() -> None:
    def passed(high: float, tolerance: float = 0.02) -> list[tuple[str, float | None]]:
        facts = answer([time_row(1 / high, high, tolerance)], "not slower", "main")
        return [(x.fact, x.values.get("unseen")) for x in facts]

    assert passed(1.019) == [("not-slower", None), ("ruled-out", pytest.approx(0.019))]
    assert passed(1.05) == [("not-seen-well", pytest.approx(0.05))]
    assert passed(1.0) == [("not-slower", None), ("ruled-out", None)]
    assert passed(1.606) == [("not-seen-well", pytest.approx(0.606))]
    assert passed(1.25, tolerance=0.2)[0][0] == "not-slower"


def test_no_row_is_ok_that_was_not_seen_well_enough() -> None:
    """A third slower at p = 0.019 stood as "ok" in the table, so that nobody looked again."""
    assert time_row(1.065, 1.666).verdict == "perhaps slower"
    assert time_row(0.90, 1.19).verdict == NOT_SEEN
    assert time_row(0.99, 1.015).verdict == "ok"
    assert time_row(1.005, 1.018).verdict == "ok", "slower, but within what is accepted"
    assert time_row(1.02, 1.12, tolerance=0.2).verdict == "ok"
    assert time_row(0.90, 1.19, tolerance=0.2).verdict == "ok"
    assert state("slower", None, 0.02) == "worse"
    assert state("inconclusive", None, 0.02) == "not measured"


# Mean 0.287 and a spread that makes the interval 1.065 to 1.666 of 8 pairs.
THIRD = [0.287 + 0.2503 * sign for sign in (1, -1) * 4]


def test_what_would_decide_is_computed_from_the_spread() -> None:
    row = time_row(1.065, 1.666)
    known = decides(THIRD, 0.02, row.verdict, spent_s=25.0, pair_s=6.0)
    needed = pairs_for(THIRD, math.expm1(0.287))
    assert needed is not None and 10 < needed < 20
    assert known is not None and known.fact == "pairs-would-prove-size"
    assert (known.values["pairs"], known.values["measured"]) == (needed, 8)
    assert known.values["size_share"] == pytest.approx(0.33, abs=0.01)
    perhaps, last = answer([row], "not slower", "HEAD~1 (01234)", Basis(p=0.019, decides=known))
    assert last == known and perhaps.fact == "perhaps-slower"
    assert (perhaps.values["low"], perhaps.values["high"]) == (1.065, 1.666)
    assert (perhaps.values["p"], perhaps.values["limit"]) == (0.019, FAIL_FINAL)
    # 2 % on such a machine takes thousands of pairs, and a gate makes 80.
    hopeless = decides(THIRD, 0.02, NOT_SEEN, 25.0, 6.0)
    assert hopeless is not None and (hopeless.fact, hopeless.values["most"]) == ("pairs-vary", 80)
    assert decides(THIRD, 0.02, "ok", 25.0, 6.0) is None


def test_the_pairs_that_are_said_to_prove_it_do_so_four_times_in_five() -> None:
    source, size = np.random.default_rng(5), 0.10
    seen = list(source.normal(0.0, 0.08, 400))
    pairs = pairs_for(seen, size)
    assert pairs is not None
    draws = source.normal(math.log1p(size), 0.08, (4000, pairs))
    t = draws.mean(1) / (draws.std(1, ddof=1) / math.sqrt(pairs))
    assert (t > t_quantile(1 - FAIL_FINAL / 2, pairs - 1)).mean() == pytest.approx(0.8, abs=0.06)


def test_too_few_pairs_say_how_much_time_they_need() -> None:
    known = too_few_pairs(1, spent_s=25.0, pair_s=10.0)
    assert known.values == {"pairs": 1, "needed": 5, "needed_s": 75.0}
    said = worded([known])
    assert " 75 s" in said and "(--budget 90s)" in said
    said = worded([too_few_pairs(0, 50.0, 60.0)])
    assert " 6 min" in said and "(--budget 7m)" in said


DIFFERENCES = [0.3, 0.1, 0.5, 0.0, 0.4, 0.2, 0.3, 0.1]


class Clock:
    """The time of `gate_run`, and an engine whose pairs take what is said."""

    side_by_side, shortest_pair_s = True, 6.0

    def __init__(self, pairs_s: list[float]) -> None:
        self.now, self.pairs_s, self.measured = 0.0, list(pairs_s), 0

    def monotonic(self) -> float:
        return self.now

    def expected_s(self, *_: object) -> float:
        return 12.0

    def runs_beside(self, *_: object) -> bool:
        return True

    def pair(self, *_: object, **__: object) -> Pair:
        self.now += self.pairs_s.pop(0) if self.pairs_s else 5.0
        slower_s = math.exp(DIFFERENCES[self.measured])
        self.measured += 1
        launches = [LaunchTiming(ended="measured", step_s=[x] * 5) for x in (1.0, slower_s)]
        blocks = [(launches[0].whole, launches[1].whole)]
        return Pair(launches=(launches[0], launches[1]), blocks=blocks, side_by_side=True)


def decided(
    monkeypatch: pytest.MonkeyPatch, pairs_s: list[float], budget_s: float
) -> tuple[str, Evidence | None, Clock]:
    clock = Clock(pairs_s)
    for module in ("gate_run", "session"):
        monkeypatch.setattr(f"torchdoctor.gate.{module}.time", clock)
    settings = GateSettings(tolerances={"step_time": 0.02}, budget_s=budget_s)
    run = GateRun(Workload(command=["train.py"], cwd="/w"), "main", settings, lambda event: None)
    clock.now = 25.0  # both versions were observed
    observed = Observed(arms=(UNTOUCHED, NEW), versions=(SEEN, SEEN), waits=[])
    verdict = run._decide(clock, clock, observed, Measured(how=Estimator()))
    return verdict, run._why, clock


def test_one_slow_first_pair_does_not_give_the_time_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads from disk what the others find in memory: 15 of 60 s were left unused for it."""
    verdict, why, clock = decided(monkeypatch, [20.0, 5.0, 5.0, 5.0, 5.0], 68.0)
    assert clock.measured == 5 and verdict == "not slower" and why is None
    verdict, why, clock = decided(monkeypatch, [18.0, 5.0], 60.0)
    assert (verdict, clock.measured) == ("inconclusive", 4)
    assert why is not None and why.values["pairs"] == 4
    assert 65 < why.values["needed_s"] <= 70
    # Pairs that filled their share of the time leave room for a last short one.
    verdict, why, clock = decided(monkeypatch, [8.0, 8.0, 8.0, 8.0, 6.0], 65.0)
    assert (verdict, clock.measured) == ("not slower", 5)
    # A slow machine stays slow: nothing is begun that lasts past the end.
    verdict, why, clock = decided(monkeypatch, [15.0, 15.0, 15.0], 60.0)
    assert clock.measured == 2 and clock.now <= 60.0 and why is not None
    assert why.values["pairs"] == 2
    verdict, why, clock = decided(monkeypatch, [], 30.0)
    assert clock.measured == 0 and why is not None and why.values["needed_s"] == 85.0


def test_work_of_a_few_steps_is_not_ruled_out_by_the_typical_one() -> None:
    """A checkpoint every 100 steps took 12 % more, and "more than 0.8 % is ruled out" passed."""
    typical = Interval(estimate=1.001, low=0.994, high=1.008)
    mean = Interval(estimate=1.12, low=1.08, high=1.16)
    row = replace(time_row(0.994, 1.008), verdict=state("not slower", typical, 0.02, mean))
    assert row.verdict == "perhaps slower"
    known = answer([row], "not slower", "main", Basis(typical=True, mean=mean))
    assert [x.fact for x in known] == ["typical-not-proven", "long-steps-slower"]
    assert known[1].values == {"estimate": 1.12, "low": 1.08, "high": 1.16}
    # Within the tolerance, or perhaps by chance, it is no warning; and the pass says of what it is.
    for low, high in ((1.001, 1.019), (0.9, 1.5)):
        unclear = Interval(estimate=math.sqrt(low * high), low=low, high=high)
        assert state("not slower", typical, 0.02, unclear) == "ok"
        known = answer([time_row(0.994, 1.008)], "not slower", "main", Basis(typical=True))
        assert known[-1].fact == "ruled-out" and known[-1].values["steps"] == "typical-steps"
        assert known[-1].values["unseen"] == pytest.approx(0.008)


def test_what_is_worse_is_named_with_its_figures() -> None:
    """ "Worse than main in peak memory: 1.001 times the step time" named the wrong figure."""
    memory = GateMetric(
        name="peak_memory", reference=1e9, new=1.3e9, unit="bytes", tolerance=0.1, verdict="worse"
    )
    rows = [time_row(0.994, 1.008), memory]
    assert named_as_worse(rows) == (["peak_memory"], [])
    assert figures_in(compared(rows, "slower")) == ["1.0 GB", "1.3 GB", "10 %"]
    ratio = Interval(estimate=1.2, low=1.15, high=1.25)
    slow = replace(time_row(1.15, 1.25), verdict="worse", ratio=ratio, reference=0.01, new=0.012)
    rate = GateMetric(name="samples_per_s", unit="samples/s", verdict="worse")
    rows = [slow, rate, memory]
    assert named_as_worse(rows) == (["step_time", "peak_memory"], ["step_time"])
    of_time, of_memory = compared(rows, "slower").split(";")
    assert figures_in(of_time) == ["10.0 ms", "12.0 ms", "1.200", "95 %", "1.150", "1.250", "2 %"]
    assert figures_in(of_memory) == ["1.0 GB", "1.3 GB", "10 %"]
    share = GateMetric(
        name="data_loader_share", reference=0.1, new=0.4, unit="share", tolerance=0.05,
        verdict="worse",
    )  # fmt: skip
    of_share = compared([slow, share], "slower").split(";")[1]
    assert figures_in(of_share)[:2] == ["10 %", "40 %"] and figures_in(of_share)[2] == "5"


def test_no_sentence_ends_in_a_colon_where_the_interval_says_nothing() -> None:
    endless = Interval(estimate=2.0, low=0.05, high=80.0)
    worse = replace(time_row(0.05, 80.0), ratio=endless, verdict="worse")
    passed = time_row(0.05, 80.0)
    for said in (
        compared([worse], "slower"),
        compared([passed], "not slower"),
        compared([replace(passed, tolerance=100.0, verdict="ok")], "not slower"),
        compared([passed], "inconclusive"),
    ):
        assert ": ." not in said and ":." not in said and not said.endswith(": ")


@pytest.mark.parametrize("unit", ["step", "call", "batch"])
def test_what_a_time_is_per_stands_in_the_first_cell_alone(unit: str) -> None:
    """It stood beside the times of calls and batches too."""
    timed = replace(time_row(0.9, 1.19), unit="s/step", reference=0.01, new=0.012)
    named, *times = gate.row(timed, unit)[:3]
    assert unit in named and times == ["10.0 ms", "12.0 ms"]


def test_a_gate_of_a_program_that_infers_speaks_of_its_calls() -> None:
    row = replace(time_row(0.9, 1.19), unit="s/step")
    basis = Basis(typical=True, mean=Interval(low=1.2, estimate=1.3, high=1.4))
    for verdict, metric in (("not slower", row), ("slower", replace(row, verdict="worse"))):
        report = GateReport(
            workload=WorkloadRecord(command=["python", "infer.py"]),
            environment=Environment(),
            reference="main",
            kind="inference",
            unit="call",
            verdict=verdict,
            answer=answer([metric], verdict, "main", basis),
            metrics=[metric],
            pairs=5,
            per="step",
            measured="side by side",
        )
        told = with_sentence(report)
        assert "call" in told.sentence and "step" not in told.sentence
        for text in (terminal.render(gate.document(told), 100), gate.junit(told)):
            assert "call" in text and "step time" not in text and " a step" not in text
