from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
from made_specs import made_fix
from told_facts import why

from torchdoctor.advice.candidates import candidates
from torchdoctor.bench.record import Recorder
from torchdoctor.launch.sandbox import Sandbox
from torchdoctor.observe.observation import Observation
from torchdoctor.queries import touched
from torchdoctor.reports.status import StatusFile
from torchdoctor.runs.run import _Checkup
from torchdoctor.runs.run_settings import RunSettings
from torchdoctor.schema import (
    Boundary,
    Candidate,
    Diagnosis,
    Environment,
    Finding,
    LoaderFacts,
    ModelFacts,
    ProcessFacts,
    Recording,
    SensorStatistics,
    Shares,
    StepStatistics,
    TraceStatistics,
    Workload,
    fact,
)
from torchdoctor.schema.errors import UsageError
from torchdoctor.schema.specs import TrainingAdvice


def fix(treats, settings=({},), keeps="within rounding", refusal=None, **more):
    return made_fix(
        treats=treats,
        keeps_results=keeps,
        refuses=lambda recording: refusal,
        settings=lambda recording: [dict(s) for s in settings],
        **more,
    )


def in_phases(*names):
    return lambda seen: touched.phases(seen, *names)


CATALOGUE = {
    "compile": fix(("compute", "python-overhead"), setup_s=40.0),
    "precision": fix(("compute",), keeps="lower precision"),
    "workers": fix(("data-wait",), ({"n": 2}, {"n": 4}, {"n": 8})),
    "fused": fix(("single-tensor-optimizer",)),
    "pin": fix(("pageable-copies",), refusal=fact("no-gpu")),
    "batch": fix(("batch-too-small",), keeps="changes training"),
    "threads": fix(("too-many-threads",)),
}
CATALOGUE = {ident: replace(spec, file=f"{ident}.py") for ident, spec in CATALOGUE.items()}


def recording(**steps):
    known = {"steps": 50, "warmup_steps": 10, "median_s": 0.1, "mean_s": 0.1}
    known |= {"p10_s": 0.1, "p90_s": 0.1, "data_wait_s": 0.06, "optimizer_s": 0.01}
    return Recording(
        workload=Workload(command=[], cwd=""),
        environment=Environment(),
        steps=StepStatistics(boundary=Boundary(kind="loader"), **(known | steps)),
        shares=Shares(data_loader=0.6, cpu=0.4, memcpy=0.001),
    )


DIAGNOSIS = Diagnosis(
    bottleneck="data_loader",
    detail="data-wait",
    findings=[
        Finding(check="data-wait", share_of_step=0.6),
        Finding(check="compute", share_of_step=0.3),
        Finding(check="too-many-threads", severity="high"),
    ],
)


def chosen(diagnosis=DIAGNOSIS, seen=None, **options):
    found, refused = candidates(seen or recording(), diagnosis, CATALOGUE, **options)
    return [(c.fixes.first, c.fixes[c.fixes.first]) for c in found], {
        r.fixes.only: r.why.fact for r in refused
    }


def test_the_largest_possible_gain_first_and_a_sweep_leaves_room_for_others():
    found, _ = chosen()
    assert found == [
        ("workers", {"n": 2}),
        ("workers", {"n": 4}),
        ("precision", {}),
        ("compile", {}),
        ("workers", {"n": 8}),
        ("threads", {}),
        ("fused", {}),
    ]


def test_ceilings_are_those_of_amdahl():
    found, _ = candidates(recording(), DIAGNOSIS, CATALOGUE)
    ceilings = {c.fixes.first: c.ceiling for c in found}
    assert ceilings["workers"] == pytest.approx(1 / (1 - 0.6))
    assert ceilings["precision"] == pytest.approx(1 / (1 - 0.3))
    assert ceilings["fused"] == pytest.approx(1 / (1 - 0.1))
    assert ceilings["threads"] is None
    workers = next(c for c in found if c.fixes.first == "workers")
    assert isinstance(workers, Candidate)
    assert workers.choice == fact("treats-cost", check="data-wait", share=0.6, share_of="")


def test_what_treats_a_setting_that_is_the_bottleneck_could_remove_its_whole_branch():
    """With the ceiling of an unknown fix, others with less promise came before the cure."""
    found, _ = candidates(recording(), replace(DIAGNOSIS, detail="too-many-threads"), CATALOGUE)
    assert (found[0].fixes.first, found[0].named) == ("threads", "setting")
    assert found[0].ceiling == pytest.approx(1 / (1 - 0.6))


def test_a_wrong_setting_is_a_likely_cure_where_something_else_is_the_bottleneck():
    """Threads that fought for a taken core were tried last, for the step waited for data too."""
    found, _ = candidates(recording(), DIAGNOSIS, CATALOGUE)
    assert [c.named for c in found if c.fixes.first == "threads"] == ["setting"]


def test_what_treats_whatever_keeps_the_host_busy_could_remove_its_whole_branch():
    """Of tiny operators a compiler also ends the computing, not only what is around them."""
    busy = replace(recording(), shares=Shares(cpu=0.92, data_loader=0.02))
    small = Finding(check="many-small-kernels", share_of_step=0.7)
    diagnosis = Diagnosis(bottleneck="cpu", detail="many-small-kernels", findings=[small])
    both = ("many-small-kernels", "cpu-execution")
    for treats, share in ((both, 0.92), (both[:1], 0.7)):
        fix = replace(CATALOGUE["compile"], treats=treats)
        (only,), _ = candidates(busy, diagnosis, {"compile": fix})
        assert only.ceiling == pytest.approx(1 / (1 - share))


@pytest.mark.parametrize(("share", "kind"), [(0.06, "cost"), (0.6, "")])
def test_what_works_on_most_of_the_step_treats_a_bottleneck_that_no_finding_explains(share, kind):
    """Without the profiler lower precision was called unlikely, though computing was the limit."""
    fused = Finding(check="single-tensor-optimizer", share_of_step=share)
    diagnosis = Diagnosis(bottleneck="cpu", detail="single-tensor-optimizer", findings=[fused])
    precision = replace(CATALOGUE["precision"], touches=in_phases("forward_s", "backward_s"))
    seen = recording(data_wait_s=0.0, forward_s=0.03, backward_s=0.06)
    (only,), _ = candidates(seen, diagnosis, {"precision": precision})
    assert only.named == kind


def test_every_fix_left_out_says_why():
    _, refused = chosen()
    assert refused == {
        "pin": CATALOGUE["pin"].refuses(recording()).fact,
        "batch": "changes-training",
    }


def test_what_could_gain_less_than_a_percent_is_pruned():
    found, refused = chosen(seen=recording(optimizer_s=0.0004))
    assert "fused" not in [name for name, _ in found]
    assert refused["fused"] == "too-small-a-cost"


def test_an_unknown_share_is_tried_last_and_not_pruned():
    quiet = Diagnosis(bottleneck="none")
    found, refused = chosen(quiet, recording(data_wait_s=0.0, optimizer_s=0.0))
    assert {name for name, _ in found} == {"compile", "precision", "threads"}
    assert {"workers", "fused"} <= set(refused)


def test_what_was_asked_for_is_tried_however_little_it_could_gain():
    found, refused = chosen(fixes=["fused"], seen=recording(optimizer_s=0.0))
    assert found == [("fused", {})] and refused == {}
    _, refused = chosen(fixes=["pin", "batch"])
    assert set(refused) == {"pin", "batch"}


def test_permission_admits_what_changes_training():
    found, _ = chosen(allow_training_changes=True)
    assert ("batch", {}) in found


def test_skipped_ones_say_so():
    found, refused = chosen(skip=["workers"])
    assert "workers" not in [name for name, _ in found]
    assert refused["workers"] == "skipped"


def test_a_fix_without_a_setting_worth_trying_is_refused():
    found, refused = candidates(recording(), DIAGNOSIS, {"workers": fix(("data-wait",), ())})
    assert found == [] and [one.fixes.only for one in refused] == ["workers"]
    assert why(refused[0]) == ["no-setting-worth-trying"]


def test_a_step_that_no_finding_explains_does_not_end_the_run():
    """A program that infers ended in a traceback: what the tree named had no finding of its own."""
    diagnosis = replace(DIAGNOSIS, bottleneck="cpu", detail="cpu-execution")
    exact = replace(CATALOGUE["threads"], keeps_results="exactly", treats=("compute",))
    (only,), _ = candidates(recording(), diagnosis, {"threads": exact})
    assert only.fixes.first == "threads"


def test_findings_may_name_a_fix_themselves():
    diagnosis = Diagnosis(
        bottleneck="cpu",
        detail="gc-pauses",
        findings=[Finding(check="gc-pauses", share_of_step=0.2, fixes=["threads"])],
    )
    found, _ = candidates(recording(), diagnosis, CATALOGUE)
    assert found[0].fixes.first == "threads" and found[0].ceiling == pytest.approx(1.25)


def test_a_fix_cannot_gain_more_than_the_phases_that_it_works_on():
    """Many small operators elsewhere are none of the optimizer's."""
    seen = recording(optimizer_s=0.004)
    finding = Finding(check="many-small-kernels", share_of_step=0.8)
    diagnosis = Diagnosis(bottleneck="cpu", detail="many-small-kernels", findings=[finding])
    narrow = fix(("many-small-kernels",), touches=in_phases("optimizer_s"))
    fixes = {"narrow": narrow, "wide": fix(("many-small-kernels",))}
    chosen, _ = candidates(seen, diagnosis, fixes)
    assert [one.fixes.first for one in chosen] == ["wide", "narrow"]
    assert chosen[1].ceiling == pytest.approx(1 / 0.96)


def test_a_fix_that_includes_another_goes_before_it():
    one = fix(("data-wait",), includes=lambda recording: ("workers",))
    chosen, _ = candidates(recording(), DIAGNOSIS, {"workers": CATALOGUE["workers"], "both": one})
    assert chosen[0].fixes.first == "both"


def test_what_no_run_can_apply_is_neither_tried_nor_refused_where_it_is_called_for():
    by_hand = fix(("compute",), untried="It needs two.", keeps="changes training")
    chosen, refused = candidates(recording(), DIAGNOSIS, {"ddp": by_hand})
    assert (chosen, refused) == ([], []), "the report offers it"
    elsewhere = fix(("odd-sizes",), untried="It needs two.")
    chosen, refused = candidates(recording(), DIAGNOSIS, {"pad": elsewhere})
    assert chosen == []
    assert why(refused[0]) == ["no-finding-calls"]


def test_advice_on_training_waits_for_the_users_word():
    advice = {"lr": fix((), training=TrainingAdvice(costs="x."), keeps="changes training")}
    _, refused = candidates(recording(), DIAGNOSIS, advice)
    assert why(refused[0]) == ["changes-training"]
    chosen, refused = candidates(recording(), DIAGNOSIS, advice, allow_training_changes=True)
    assert (chosen, refused) == ([], [])


def test_a_fix_that_trades_time_for_memory_is_tried_where_it_is_called_for_or_named():
    trade = {"checkpoint": fix(("memory-near-limit",), needs_finding=True)}
    chosen, refused = candidates(recording(), DIAGNOSIS, trade)
    assert chosen == []
    assert why(refused[0]) == ["no-finding-calls"]
    chosen, _ = candidates(recording(), DIAGNOSIS, trade, fixes=["checkpoint"])
    assert [one.fixes.first for one in chosen] == ["checkpoint"]


def test_nothing_but_what_a_fix_touches_bounds_it():
    reader = fix(("data-wait",), touches=lambda seen: touched.calls(seen, 0.02, "reading"))
    found, _ = candidates(recording(), DIAGNOSIS, {"reader": reader})
    assert found[0].ceiling == found[0].bound == pytest.approx(1 / 0.8)
    waiting = fix(("data-wait",), touches=in_phases("data_wait_s"))
    found, _ = candidates(recording(), DIAGNOSIS, {"reader": waiting})
    assert found[0].bound == pytest.approx(1 / 0.4)
    found, _ = candidates(recording(), DIAGNOSIS, {"wide": fix(("data-wait",))})
    assert found[0].bound is None


def test_a_fix_of_which_the_recording_holds_nothing_is_not_tried():
    idle = {"layout": fix(("data-wait",), touches=lambda seen: [])}
    found, refused = candidates(recording(), DIAGNOSIS, idle)
    assert (found, [one.fixes.only for one in refused]) == ([], ["layout"])
    found, _ = candidates(recording(), DIAGNOSIS, idle, fixes=["layout"])
    assert [one.fixes.first for one in found] == ["layout"], "whoever names it, tries it"


def test_where_nearly_all_of_a_step_is_touched_no_figure_is_a_bound():
    """A notebook was bound at 317x."""
    everything = fix(("data-wait",), touches=in_phases("data_wait_s"))
    found, _ = candidates(recording(data_wait_s=0.0997), DIAGNOSIS, {"reader": everything})
    assert found[0].bound is None


def test_what_waits_for_most_of_a_step_may_gain_more_than_the_wait():
    """4.76x was measured where the wait alone allowed 3.09x: cores that slept compute slower."""
    reader = fix(("data-wait",), touches=touched.waits)
    found, _ = candidates(recording(data_wait_s=0.0676), DIAGNOSIS, {"reader": reader})
    assert 4.76 < found[0].bound < 6
    found, _ = candidates(recording(data_wait_s=0.03), DIAGNOSIS, {"reader": reader})
    assert 1 / 0.7 < found[0].bound < 1.6, "of a short wait nearly nothing"


def test_without_busy_workers_the_training_may_gain_beyond_its_waits():
    """Ten workers on two CPUs slow the forward pass, too: 2.7x of a step that waits for 53 %."""
    workers = fix(("data-wait",), touches=lambda seen: touched.several(
        touched.phases(seen, "data_wait_s"), touched.given_back(seen)
    ))  # fmt: skip
    own = ProcessFacts(pid=1, loaders=[LoaderFacts(ident=0, num_workers=10, batches=50)])
    busy = replace(recording(), processes=[own], sensors=SensorStatistics(workers_cpus=0.25))
    found, _ = candidates(busy, DIAGNOSIS, {"workers": workers})
    assert found[0].bound == pytest.approx(1 / (1 - 0.6 - 0.25))
    everything = replace(busy, sensors=SensorStatistics(workers_cpus=1.9))
    found, _ = candidates(everything, DIAGNOSIS, {"workers": workers})
    assert found[0].bound is None


def test_what_goes_with_a_fix_may_gain_beyond_its_bound():
    both = fix(
        ("data-wait",),
        touches=in_phases("data_wait_s"),
        together=lambda settings, seen: {"threads": {}},
    )
    found, _ = candidates(recording(), DIAGNOSIS, {"both": both, "threads": fix(())})
    bounds = {c.fixes.only is None: c.bound for c in found if c.fixes.first == "both"}
    assert bounds == {True: None, False: pytest.approx(1 / 0.4)}


def test_of_gains_that_are_as_large_the_cheaper_trial_comes_first():
    """A few microseconds of a phase more must not put a conversion of files before workers."""
    waiting = ("data_wait_s", "before_forward_s")
    convert = fix(("data-wait",), touches=in_phases(*waiting), setup_s=2.0)
    workers = fix(("data-wait",), touches=in_phases("data_wait_s"))
    seen = recording(data_wait_s=0.055, before_forward_s=0.0005)
    found, _ = candidates(seen, DIAGNOSIS, {"convert": convert, "workers": workers})
    assert [one.fixes.first for one in found] == ["workers", "convert"]


def test_of_gains_that_are_as_large_what_is_made_for_the_finding_comes_first():
    """By the alphabet a number of threads took the one look that there was time for."""
    catalogue = {
        "a-threads": fix(("too-many-threads", "compute")),
        "b-precision": fix(("compute", "low-precision-unused")),
        "c-optimizer": fix(("single-tensor-optimizer", "compute", "python-overhead")),
    }
    found = [Finding(check="compute", share_of_step=0.9)]
    diagnosis = Diagnosis(bottleneck="cpu", detail="compute", findings=found)
    ranked, _ = candidates(recording(), diagnosis, catalogue)
    assert [one.fixes.first for one in ranked] == ["b-precision", "a-threads", "c-optimizer"]


@pytest.mark.parametrize(
    "share, keeps, more, first",
    [
        (0.8, "exactly", {}, "gradients"),
        (0.5, "exactly", {}, "workers"),  # less than the bottleneck
        (0.8, "lower precision", {}, "workers"),
        (0.8, "exactly", {"setup_s": 5.0}, "workers"),
    ],
)
def test_a_mistake_that_costs_more_than_the_bottleneck_does_not_wait(share, keeps, more, first):
    catalogue = {**CATALOGUE, "gradients": fix(("evaluation",), keeps=keeps, **more)}
    found = [*DIAGNOSIS.findings, Finding(check="evaluation", share_of_step=share)]
    diagnosis = Diagnosis(bottleneck="data_loader", detail="data-wait", findings=found)
    assert candidates(recording(), diagnosis, catalogue)[0][0].fixes.first == first


def test_workers_gain_no_more_than_the_cpus_leave_to_them():
    """On two CPUs that decode all the time, what takes the decoding away goes first."""
    catalogue = {
        "workers": fix(("data-wait",), touches=lambda seen: touched.waits(seen, elsewhere=True)),
        "cache": fix(("data-wait",), setup_s=2.0),
    }
    loader = LoaderFacts(ident=0, num_workers=0, batches=50, sample_cpu_share=1.0)

    def tried(cpus, step_s=0.1, **known):
        seen = replace(
            recording(mean_s=step_s, data_wait_s=0.6 * step_s),
            environment=Environment(usable_cpus=cpus),
            processes=[ProcessFacts(pid=1, loaders=[replace(loader, **known)])],
        )
        found, refused = candidates(seen, DIAGNOSIS, catalogue)
        assert {one.fixes.only for one in refused} <= {"workers"}
        return [(one.fixes.first, round(one.ceiling, 2)) for one in found]

    assert tried(2.0) == [("cache", 2.5), ("workers", 1.99)], "0.3 ms to hand a batch over"
    assert tried(1.0) == [("cache", 2.5)]
    assert tried(16.0) == [("workers", 2.48), ("cache", 2.5)], "the cheaper trial first"
    assert tried(16.0, step_s=0.001) == [("cache", 2.5), ("workers", 1.43)]
    assert tried(2.0, sample_cpu_share=0.1)[0][0] == "workers", "it waits for a disk"
    assert tried(2.0, num_workers=2)[0][0] == "workers", "they are there already"


def test_company_is_looked_at_first_and_only_where_it_may_be_tried():
    """In channels_last low precision gains what neither gains alone."""
    catalogue = {
        "layout": fix(("compute",), together=lambda settings, seen: {"precision": {"dtype": "x"}}),
        "precision": fix(("compute",)),
    }

    def tried(**options):
        found, _ = candidates(recording(), DIAGNOSIS, catalogue, **options)
        return [dict(one.fixes) for one in found]

    company = {"precision": {"dtype": "x"}}
    both = {"layout": {}, **company}
    assert tried() == [both, {"precision": {}}, {"layout": {}}]
    assert tried(skip=["precision"]) == [{"layout": {}}]
    assert tried(fixes=["layout"]) == [{"layout": {}}], "nothing that was not asked for"
    assert both in tried(fixes=["layout", "precision"])


@pytest.mark.parametrize(
    ("elapsed_s", "profiled", "left", "enough"),
    [(10, True, 10, 29), (10, False, 10, 46), (25, True, 0, 52)],
)  # fmt: skip
def test_what_is_left_of_the_budget_is_said_and_how_much_would_do(
    elapsed_s, profiled, left, enough, tmp_path
) -> None:
    """ "The budget was used up", with half of it left."""
    trace = TraceStatistics(path="trace.json.gz", steps=1, step_s=0.01) if profiled else None
    run = _Checkup(
        recording=replace(recording(), trace=trace),
        settings=RunSettings(budget_s=20, fixes=[]),
        tell=lambda event: None,
        began_s=0.0,
        folder=tmp_path,
        sandbox=cast(Sandbox, None),
        recorder=cast(Recorder, SimpleNamespace(left_s=20 - elapsed_s)),
        status=cast(StatusFile, None),
    )
    run._try_fixes(cast(Observation, SimpleNamespace(start_s=12.0)))
    assert run.no_trials == fact(
        "budget-too-short", left_s=pytest.approx(left, abs=0.5), budget_s=20, enough_s=enough
    )


def test_a_mistyped_fix_is_answered_with_the_one_that_may_be_meant() -> None:
    with pytest.raises(UsageError, match=r"is not a fix.*Did you mean loader-workers"):
        RunSettings(fixes=["loader-worker"]).check()


def test_a_fix_of_one_platform_is_refused_on_another_with_the_reason():
    models = [ModelFacts(ident=0, device="npu:0")]
    there = replace(recording(), processes=[ProcessFacts(pid=1, models=models)])
    tuned = {"tf32": replace(CATALOGUE["fused"], platforms=("cuda", "rocm"), file="tf32.py")}
    _, (refused,) = candidates(there, DIAGNOSIS, tuned)
    assert refused.fixes.only == "tf32"
    assert refused.why == fact("for-other-platforms", platforms=["CUDA", "ROCm"], on="npu")


@pytest.mark.parametrize(
    ("share", "keeps", "kind"),
    [
        (0.47, "exactly", "measured"),
        (0.1, "exactly", ""),
        (0.47, "lower precision", ""),
    ],
)
def test_the_cure_of_a_large_measured_part_is_owed_a_trial_whatever_the_branch(share, keeps, kind):
    """Garbage collection of 47 % was "not worth its time" where the step waited for data."""
    findings = [
        Finding(check="data-wait", share_of_step=0.8),
        Finding(check="gc-pauses", share_of_step=share, severity="moderate"),
    ]
    diagnosis = Diagnosis(bottleneck="data_loader", detail="data-wait", findings=findings)
    known = {
        "freeze": replace(fix(("gc-pauses",), keeps=keeps), file="freeze.py"),
        "workers": CATALOGUE["workers"],
    }
    tried, _ = candidates(recording(), diagnosis, known)
    named = {candidate.fixes.first: candidate.named for candidate in tried}
    assert named["freeze"] == kind
    assert named["workers"] == "cost"  # it treats the branch


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"p_helps": 0.7}, "measured"),
        ({"p_helps": 0.7, "keeps_results": "within rounding"}, "cost"),
        ({"p_helps": 0.7, "setup_s": 20.0}, "cost"),
        ({}, "cost"),
    ],
)
def test_the_cure_of_a_seen_shape_is_owed_a_trial_though_it_treats_the_branch_too(fields, kind):
    """A file opened for each sample was 60 % of the step, and numbers of threads came first."""
    findings = [Finding(check="data-wait", share_of_step=0.6)]
    diagnosis = Diagnosis(bottleneck="data_loader", detail="data-wait", findings=findings)
    keeps = replace(fix(("data-wait", "hot-call"), keeps="exactly"), file="keeps.py", **fields)
    [candidate], _ = candidates(recording(), diagnosis, {"keeps": keeps})
    assert candidate.named == kind


def test_a_bottleneck_without_a_finding_of_its_own_ends_no_run():
    """The tree names the host, and no check explains it; a finding beside it calls for a fix."""
    beside = Finding(check="too-many-threads", share_of_step=0.3)
    diagnosis = Diagnosis(bottleneck="cpu", detail=None, findings=[beside])
    threads = {"threads": fix(("too-many-threads",), keeps="exactly")}
    chosen, refused = candidates(recording(), diagnosis, threads)
    assert [candidate.fixes.first for candidate in chosen] == ["threads"]
    assert refused == []
