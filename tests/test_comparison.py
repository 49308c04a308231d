"""`torchdoctor compare`: known changes come out as what they are, in their order."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import recorded_traces
from compared_pairs import (
    diagnosed,
    facts_of,
    remarks_of,
    run_with,
    samples,
    synthetic,
    trace_of,
)
from shown import terminal

from torchdoctor.compare import compare
from torchdoctor.schema import Finding, Location, Report, Shares
from torchdoctor.schema.comparison import Comparison
from torchdoctor.schema.errors import Inconclusive
from torchdoctor.trials.compare import welch_interval

ROOT = Path(__file__).parent.parent


def changed(folder: Path, **how) -> Comparison:
    before = diagnosed(folder, "a.json", trace_of())
    return compare(before, diagnosed(folder, "b.json", trace_of(**how)))


def test_a_slower_loader_is_the_first_change(tmp_path: Path) -> None:
    found = changed(tmp_path, loader_us=600.0)
    assert found.verdict == "slower"
    assert found.parts[0].name == "data_loader"
    assert found.parts[0].change_s == pytest.approx(300e-6, rel=0.01)
    assert sum(one.change_s or 0.0 for one in found.parts) == pytest.approx(
        found.b.step_s - found.a.step_s, abs=1e-9
    )
    part = facts_of(found)["part-changed"]
    assert part["part"] == "data_loader" and 0.5 < part["of_all"] < 1.05
    assert found.speedup is None


def test_an_added_kernel_is_counted_and_placed(tmp_path: Path) -> None:
    found = changed(tmp_path, kernels=2)
    assert found.parts[0].name == "gpu"
    assert found.parts[0].change_s == pytest.approx(395e-6, rel=0.03)
    [kernels] = [one for one in found.figures if one.name == "kernels"]
    assert (kernels.a, kernels.b) == (1, 2)
    [matmul] = [one for one in found.operators if one.name == "aten::mm"]
    assert (matmul.a_calls, matmul.b_calls, matmul.change) == (1, 2, "changed")


def test_an_exposed_collective_is_communication_and_a_new_finding(tmp_path: Path) -> None:
    found = changed(tmp_path, collective_us=350.0)
    assert found.parts[0].name == "communication"
    assert found.parts[0].change_s == pytest.approx(350e-6, rel=0.02)
    new = [one.check for one in found.findings if one.change == "new"]
    assert "communication-share" in new
    assert facts_of(found)["new-finding"]["check"] == "communication-share"


def test_what_only_fell_below_its_threshold_is_not_said_to_be_gone(tmp_path: Path) -> None:
    """ "gone: communication-share (14.7 ms)" while 12.2 ms of it remained."""
    a = diagnosed(tmp_path, "a.json", trace_of(collective_us=100))
    b = diagnosed(tmp_path, "b.json", trace_of(collective_us=50))
    found = compare(a, b)
    [change] = [one for one in found.findings if one.check == "communication-share"]
    assert (change.a_s, change.b_s) == pytest.approx((100e-6, 50e-6))
    text = " ".join(terminal(found).split())
    assert "communication-share (100 us -> 50.0 us " in text
    assert "finding-gone" not in facts_of(found)


def test_what_came_when_read_backwards_went(tmp_path: Path) -> None:
    a = diagnosed(tmp_path, "a.json", trace_of())
    b = diagnosed(tmp_path, "b.json", trace_of(loader_us=600.0, collective_us=350.0))
    there, back = compare(a, b), compare(b, a)
    assert back.verdict == "faster"
    assert back.ratio == pytest.approx(1 / there.ratio)
    assert [p.name for p in back.parts] == [p.name for p in there.parts]
    assert {f.check for f in there.findings if f.change == "new"} == {
        f.check for f in back.findings if f.change == "gone"
    }


def test_changes_are_ordered_by_size(tmp_path: Path) -> None:
    found = changed(tmp_path, loader_us=500.0, kernels=2, collective_us=50.0)
    assert [one.name for one in found.parts][:3] == ["gpu", "data_loader", "communication"]


@pytest.mark.parametrize("kind", ["trace", "run", "run without launches"])
def test_equal_inputs_are_no_difference(kind: str, tmp_path: Path) -> None:
    report = {
        "trace": lambda: diagnosed(tmp_path, "a.json", synthetic.every_branch()),
        "run": samples.loader_bound,
        "run without launches": samples.compute_bound,
    }[kind]()
    found = compare(report, report)
    assert found.verdict == "same"
    assert list(facts_of(found)) == ["no-difference"]
    assert found.findings == []
    assert found.operators == []
    assert found.environment == found.workload == []
    assert all(not one.change_s for one in found.parts)


def test_two_runs_get_an_interval_and_are_called_weaker_than_a_gate() -> None:
    found = compare(run_with(), run_with(1.18))
    assert found.verdict == "slower"
    assert found.speedup is not None
    assert found.speedup.estimate == pytest.approx(1 / 1.18)
    assert found.speedup.low < 1 / 1.18 < found.speedup.high < 1
    assert found.ratio == pytest.approx(1.18)
    assert facts_of(found)["changed-by-launches"]["estimate"] == pytest.approx(1.18)
    assert "other-times" in remarks_of(found)
    assert found.a.measured_as.values == {"launches": 4}


def test_launches_that_vary_more_than_they_differ_decide_nothing() -> None:
    found = compare(run_with(), run_with(1.03))
    assert found.verdict == "unclear"
    assert list(facts_of(found)) == ["launches-vary"]


def test_launches_per_sample_are_scaled_to_steps() -> None:
    def per_sample(factor: float) -> Report:
        report = run_with(factor)
        launches = [s / 32.0 for s in report.baseline.launches_s]
        return replace(
            report, baseline=replace(report.baseline, launches_s=launches, launches_per="sample")
        )

    found = compare(per_sample(1.0), per_sample(1.18))
    assert found.speedup is not None
    assert found.a.step_s == pytest.approx(0.4174, rel=0.01)
    assert found.ratio == pytest.approx(1.18)


@pytest.mark.xdist_group("scipy")
def test_welchs_interval_is_scipys() -> None:
    from scipy.stats import ttest_ind

    a, b = [0.41, 0.42, 0.41, 0.43], [0.47, 0.52, 0.49]
    ours = welch_interval(a, b)
    test = ttest_ind([math.log(x) for x in a], [math.log(x) for x in b], equal_var=False)
    low, high = test.confidence_interval(0.95)
    assert ours is not None
    assert (ours.low, ours.high) == pytest.approx((math.exp(low), math.exp(high)))
    assert welch_interval([1.0], [1.0, 2.0]) is None


def test_findings_are_new_gone_and_changed_with_their_places() -> None:
    a = samples.loader_bound()
    loader, optimizer = a.diagnosis.findings
    moved = replace(loader, share_of_step=0.5, location=replace(loader.location, line=41))
    new = Finding(
        check="sync-in-step",
        share_of_step=0.2,
        location=Location(file=f"{samples.HOME}/train.py", line=60),
    )
    b = replace(a, diagnosis=replace(a.diagnosis, findings=[new, moved]))
    found = compare(a, b).findings
    assert [(one.check, one.change, one.a_place, one.b_place) for one in found] == [
        ("sync-in-step", "new", "", "train.py:60"),
        ("single-tensor-optimizer", "gone", "train.py:34", ""),
        ("loader-cpu-bound", "changed", "train.py:31", "train.py:41"),
    ]
    assert optimizer.evidence == found[1].evidence


def test_of_two_findings_of_one_check_the_one_at_the_same_line_is_the_same() -> None:
    a = samples.loader_bound()
    loader = a.diagnosis.findings[0]
    earlier = replace(loader, location=replace(loader.location, line=12))
    both = replace(a, diagnosis=replace(a.diagnosis, findings=[earlier, loader]))
    only = replace(a, diagnosis=replace(a.diagnosis, findings=[loader]))
    [gone] = compare(both, only).findings
    assert (gone.change, gone.a_place) == ("gone", "train.py:12")


def test_another_machine_workload_and_batch_are_said() -> None:
    found = compare(samples.loader_bound(), samples.compute_bound())
    assert [one.name for one in found.environment] == [
        "GPU",
        "CPU",
        "usable CPUs",
        "torch",
        "Python",
    ]
    assert [one.name for one in found.workload] == ["command"]
    assert found.verdict == "not comparable"
    assert found.speedup is None
    named = [x.values["name"] for x in found.answer if x.fact == "another-condition"]
    assert {"GPU", "torch"} <= set(named)
    known = facts_of(found)
    assert known["another-script"]["a"] == "train.py"
    assert known["another-number-of-processes"] == {"a": 1, "b": 2}
    assert "no-ratio" in known and "per-sample" not in known


def test_other_software_or_another_script_has_no_ratio() -> None:
    before = run_with()
    newer = replace(before.environment, torch="2.99.0")
    for after, reason in (
        (run_with(0.5, environment=newer), "another-condition"),
        (
            run_with(0.5, workload=replace(before.workload, command=["python", "other.py"])),
            "another-script",
        ),
    ):
        found = compare(before, after)
        assert found.verdict == "not comparable"
        assert list(facts_of(found)) == ["not-the-same-workload", reason, "no-ratio"]
    moved = ["python", "/elsewhere/train.py", "--workers", "4"]
    found = compare(before, run_with(0.5, workload=replace(before.workload, command=moved)))
    assert found.verdict == "faster"
    unknown = compare(before, run_with(0.5, workload=replace(before.workload, command=[])))
    assert unknown.verdict == "faster" and unknown.workload[0].b == "none"


def test_other_batches_are_compared_per_sample_alone() -> None:
    before = run_with()
    rate = before.baseline.samples_per_s
    twice = run_with(1.5)
    twice = replace(twice, baseline=replace(twice.baseline, samples_per_s=rate * 2 / 1.5))
    found = compare(before, twice)
    known = facts_of(found)
    assert list(known) == ["not-the-same-workload", "another-batch-size", "per-sample"]
    assert known["per-sample"]["ratio"] == pytest.approx(0.75)


def test_another_script_is_said() -> None:
    def script(digest: str) -> Report:
        report = samples.loader_bound()
        return replace(report, workload=replace(report.workload, script_sha256=digest * 32))

    [one] = compare(script("ab"), script("cd")).workload
    assert (one.a, one.b) == ("abababababab", "cdcdcdcdcdcd")


def test_without_shares_the_phases_say_where() -> None:
    def phases(wait: float) -> Report:
        report = run_with()
        steps = samples.steps(0.4, data_wait=wait, forward=0.1)
        return replace(report, steps=steps, baseline=replace(report.baseline, shares=Shares()))

    found = compare(phases(0.2), phases(0.6))
    assert found.parts_are == "phases"
    assert found.parts[0].name == "data_wait"
    nothing = compare(replace(phases(0.2), steps=None), phases(0.6))
    assert (nothing.parts_are, nothing.parts) == ("none", [])


def test_a_run_beside_a_trace_is_compared_by_its_profiled_steps(tmp_path: Path) -> None:
    trace = diagnosed(tmp_path, "b.json", trace_of(loader_us=600.0))
    own = diagnosed(tmp_path, "own.json", trace_of()).trace
    run = replace(run_with(), trace=own)
    found = compare(run, trace)
    assert (found.a.kind, found.b.kind) == ("run", "trace")
    assert found.a.step_s == pytest.approx(700e-6)
    assert found.speedup is None
    assert "timed-by-profiled-steps" in remarks_of(found)
    untraced = compare(run_with(), trace)
    assert "timed-without-profiler" in remarks_of(untraced)


def test_no_step_time_is_inconclusive() -> None:
    report = samples.loader_bound()
    without = replace(report, baseline=replace(report.baseline, step_time_s=None))
    for pair in ((report, without), (without, report)):
        with pytest.raises(Inconclusive, match="no step time"):
            compare(*pair)


def test_workers_in_a_recorded_training_took_the_wait_for_data_away() -> None:
    a, b = (recorded_traces.report(f"v100_resnet50_workers{n}") for n in (0, 4))
    found = compare(a, b)
    assert found.verdict == "faster"
    assert found.parts[0].name == "data_loader"
    assert found.parts[0].change_s == pytest.approx(-58e-3, abs=1e-3)
    assert facts_of(found)["finding-gone"]["check"] == "data-wait"


def test_a_busier_machine_proves_no_change() -> None:
    """Under a steady load the launches of a run agree, so their interval is narrow and wrong."""
    calm = replace(run_with().sensors, other_load_cpus=0.0)
    busy = replace(calm, other_load_cpus=0.3 * run_with().environment.usable_cpus)
    before, after = run_with(2.4, sensors=busy), run_with(sensors=calm)
    found = compare(before, after)
    assert found.verdict == "unclear"
    assert list(facts_of(found)) == ["other-programs"]
    assert compare(replace(before, sensors=calm), after).verdict == "faster"


def test_parts_are_milliseconds_of_the_launch_that_they_were_observed_in() -> None:
    """Shares of an observed step of 296 ms, times the trials' 139 ms, are nobody's milliseconds."""
    old = run_with()
    long_s = 2.0 * old.steps.mean_s
    new = run_with(1.4, steps=replace(old.steps, mean_s=long_s))
    found = compare(old, new)
    assert found.b.parts_s == pytest.approx(long_s)
    assert sum(part.b_s or 0.0 for part in found.parts) == pytest.approx(long_s, rel=0.05)
    costs = [one for one in new.diagnosis.findings if one.share_of_step]
    for one in found.findings:
        shares = [x.share_of_step for x in costs if x.check == one.check]
        assert one.b_s in [pytest.approx(share * long_s) for share in shares]
    assert ("parts-of-another-launch" in remarks_of(found)) == (
        not 1 / 1.2 < long_s / found.b.step_s < 1.2
    )


def test_what_a_step_time_is_of_is_told() -> None:
    side = compare(run_with(), run_with(1.4)).a
    assert (side.measured_as.fact, side.measured_as.values) == ("mean-of-launches", {"launches": 4})
    time = run_with().baseline.step_time_s
    time = replace(time, mean=1.6 * time.median)
    alone = run_with()
    alone = replace(alone, baseline=replace(alone.baseline, launches_s=[], step_time_s=time))
    side = compare(alone, alone).a
    assert side.measured_as.fact == "mean-of-steps"
    assert side.measured_as.values["median_s"] == time.median
    assert side.basis.startswith("mean of ")


def test_a_load_explains_only_what_is_slower_beside_it() -> None:
    """A was measured beside others, B alone, and B is slower all the same."""
    calm = replace(run_with().sensors, other_load_cpus=0.0)
    busy = replace(calm, other_load_cpus=0.3 * run_with().environment.usable_cpus)
    assert compare(run_with(sensors=busy), run_with(1.6, sensors=calm)).verdict == "slower"
    assert compare(run_with(sensors=calm), run_with(1.6, sensors=busy)).verdict == "unclear"


def two_kinds(report: Report) -> Report:
    """Some of its steps take far longer, so that its launches are told by their mean step."""
    time = report.baseline.step_time_s
    time = replace(time, median=time.mean / 1.5)
    baseline = replace(report.baseline, step_time_s=time, launches_by="mean")
    return replace(report, baseline=baseline)


def test_means_of_launches_are_not_compared_with_medians() -> None:
    found = compare(run_with(), two_kinds(run_with()))
    assert found.speedup is None
    assert found.ratio == pytest.approx(1.0), "the mean steps of both"
    assert "other-kinds-of-step" in remarks_of(found)
    alike = compare(two_kinds(run_with()), two_kinds(run_with(1.3)))
    assert alike.speedup is not None and alike.verdict == "slower"


def alone(report: Report) -> Report:
    return replace(report, baseline=replace(report.baseline, launches_s=[]))


def test_without_launches_steps_within_each_others_spread_decide_nothing() -> None:
    found = compare(alone(run_with()), alone(run_with(1.04)))
    assert found.verdict == "unclear"
    assert list(facts_of(found)) == ["within-spread"]
    assert compare(alone(run_with()), alone(run_with(1.4))).verdict == "slower"
