import dataclasses
import json
import math

import msgspec
import pytest
from simulated_program import TYPICAL, Simulated, observed, says_why, seeds, try_all
from told_facts import quoted, why

from torchdoctor.schema import Candidate, Fingerprint, FixSet, fact, message, within
from torchdoctor.schema.errors import TorchdoctorError
from torchdoctor.schema.trials import NOT_WORTH_ITS_TIME, OUT_OF_TIME
from torchdoctor.trials.arms import FixFacts, Ladder
from torchdoctor.trials.outcome import TrialResults

NAMES = ["workers n=2", "fused", "tf32", "null-a", "null-b", "workers n=4", "null-c"]
GAINS = {"workers n=2": 2.0, "workers n=4": 2.5, "fused": 1.2}


def row(results, *fixes, **settings):
    """The trial of just these fixes; with `settings`, of the one that has these."""
    return next(
        t
        for t in results.trials
        if t.fixes.ids == fixes and (not settings or t.fixes[fixes[0]] == settings)
    )


def recommended(results):
    return [(f.fix, f.settings) for f in results.recommendation.fixes]


def check(results):
    """What must hold however a search ends."""
    assert isinstance(results, TrialResults)
    msgspec.json.encode(dataclasses.asdict(results), enc_hook=dict)
    for one in results.trials:
        verdicts = ("faster", "looks-faster", "slower", "same", "unclear", "failed", "refused")
        assert one.verdict in verdicts
        if one.speedup is not None:
            assert one.speedup.low <= one.speedup.estimate <= one.speedup.high
            assert all(map(math.isfinite, dataclasses.astuple(one.speedup)))
        if one.verdict in ("failed", "refused") or one.pairs == 0:
            assert why(one)
    if results.recommendation.fixes:
        assert results.recommendation.speedup.low > 1.0
        strong = results.recommendation.speedup.low >= 1.5
        assert results.recommendation.pairs >= (2 if strong else 3)


def test_the_best_are_confirmed_and_measured_together():
    program = Simulated(gains=GAINS)
    results = try_all(program, NAMES)
    check(results)
    assert recommended(results) == [("workers", {"n": 4}), ("fused", {})]
    assert results.recommendation.speedup.estimate == pytest.approx(3.0, rel=0.03)
    together = row(results, "workers", "fused")
    assert together.verdict == "faster"
    assert together.fixes == {"workers": {"n": 4}, "fused": {}}
    assert results.recommendation.pairs == together.pairs
    assert [t.fixes.only for t in results.trials[: len(NAMES)]] == [
        name.split()[0] for name in NAMES
    ]
    assert row(results, "workers", n=2).choice.fact in (NOT_WORTH_ITS_TIME, OUT_OF_TIME)


def test_a_larger_batch_is_judged_per_sample_or_not_at_all():
    class Bigger(Simulated):
        def __call__(self, fixes, *, seed_offset=0):
            timing = super().__call__(fixes, seed_offset=seed_offset)
            factor = 2 if fixes else 1  # twice the batch, 1.6 times the step
            samples = timing.samples and timing.samples * factor
            return dataclasses.replace(timing, samples=samples)

    facts = {"bigger": FixFacts(keeps_results="changes training")}
    for samples, expected in ((32.0, "faster"), (None, "unclear")):
        program = Bigger(gains={"bigger": 1 / 1.6}, samples_per_step=samples)
        results = try_all(program, ["bigger"], facts=facts, allow_training_changes=True)
        found = row(results, "bigger")
        assert found.verdict == expected
        assert recommended(results) == ([("bigger", {})] if samples else [])
        assert ("batch-size-unknown" in why(found)) is (samples is None)


def test_nothing_to_gain_recommends_nothing():
    results = try_all(Simulated(), ["a", "b", "c", "d"])
    check(results)
    assert recommended(results) == [] and results.recommendation.speedup is None


def test_no_candidates_no_launches():
    program = Simulated()
    results = try_all(program, [])
    assert results.trials == [] and program.launched == [] and results.noise_floor is None


def test_a_single_candidate_is_measured_until_its_figure_is_narrow():
    program = Simulated(gains={"a": 1.5})
    results = try_all(program, ["a"])
    assert len(program.launched) == 2 * row(results, "a").pairs <= 8
    assert recommended(results) == [("a", {})]


def test_a_sweep_that_only_gets_worse_together_falls_back_to_the_best_single():
    class Exclusive(Simulated):
        def __call__(self, fixes, *, seed_offset=0):
            self.gains = {"a": 1.5, "b": 1.3} if len(fixes) < 2 else {"a": 1.1, "b": 1.0}
            return super().__call__(fixes, seed_offset=seed_offset)

    results = try_all(Exclusive(), ["a", "b"])
    assert recommended(results) == [("a", {})]
    assert row(results, "a", "b").speedup.estimate == pytest.approx(1.1, rel=0.03)
    assert results.recommendation.speedup.estimate == pytest.approx(1.5, rel=0.03)


@pytest.mark.parametrize("budget_s", range(2, 320, 11))
def test_the_budget_is_kept_and_what_was_measured_too(budget_s):
    program = Simulated(gains=GAINS, noise=TYPICAL, seed=budget_s)
    results = try_all(program, NAMES, float(budget_s))
    check(results)
    assert program.now <= budget_s
    assert results.launches == len(program.launched)
    for one in results.trials:
        assert one.pairs > 1 or one.verdict != "same"
        assert one.pairs or one.verdict == "unclear"
    if budget_s >= 60:
        assert recommended(results), "60 s are 12 launches: enough to confirm one"


@pytest.mark.parametrize("gain", [1.0, 1.5])
def test_a_start_that_is_dear_against_the_budget_leaves_nothing_tried(gain):
    """It was "nothing to gain" of the only fix, of which nothing was known."""
    launch_s = Simulated().launch_s
    results = try_all(Simulated(gains={"a": gain}), ["a"], 1.5 * launch_s, could_gain={"a": 1.005})
    assert (results.stopped, row(results, "a").choice.fact) == ("not tried", OUT_OF_TIME)
    enough = try_all(
        Simulated(gains={"a": gain}),
        ["a"],
        1.5 * launch_s + results.lacked_s,
        could_gain={"a": 1.005},
    )
    assert not row(enough, "a").lacked_time and enough.lacked_s is None


def test_more_budget_finds_more():
    found = []
    for budget_s in (60.0, 120.0, 300.0):
        results = try_all(Simulated(gains=GAINS, seed=5), NAMES, budget_s, seed=5)
        found.append(results.recommendation.speedup.estimate)
    assert found[1] > 1.2 * found[0] and found[2] > 0.98 * found[1]


def test_a_launch_slower_than_all_before_it_overruns_by_itself_only():
    program = Simulated(setup_s={"compile": 40.0})
    results = try_all(program, ["compile", "b", "c"], 100.0)
    check(results)
    began_last = program.began[-1]
    assert began_last < 100.0
    # Known to take long by then: it was not started where it could not end.
    launches = zip(program.began, program.launched, strict=True)
    again = [at for at, (name, _) in launches if name == "compile"][1:]
    assert all(at + 45.0 <= 100.0 for at in again)


def test_a_cost_that_is_announced_is_planned_for():
    program = Simulated(setup_s={"compile": 40.0}, gains={"compile": 1.5})
    results = try_all(program, ["b", "compile"], 30.0, setup_s=program.setup_s)
    assert all(name != "compile" for name, _ in program.launched)
    assert row(results, "compile").lacked_time
    taken = fact("long-first-launch", once_s=40.0)
    assert row(results, "compile").why[1:] == [taken], "what it would have taken"


@pytest.mark.parametrize("at", [1, 2, 3, 7, 8, 12])
def test_ctrl_c_at_any_launch_keeps_what_was_measured(at):
    program = Simulated(gains=GAINS, interrupt_at=at)
    results = try_all(program, NAMES)
    check(results)
    assert results.interrupted == (len(program.launched) == at)
    if at == 3:
        reasons = [why(trial) for trial in results.trials]
        assert reasons.count(["interrupted"]) == len(NAMES) - 1


def test_ctrl_c_between_launches():
    def progress(event):
        if event.launches_done == 8:
            raise KeyboardInterrupt

    results = try_all(Simulated(gains=GAINS), NAMES, progress=progress)
    check(results)
    assert results.interrupted and results.launches == 8


def test_an_interrupted_launch_is_no_failure_of_its_fix():
    ends = try_all(Simulated(ends={"fused": "interrupted"}), NAMES)
    assert ends.interrupted and row(ends, "fused").verdict == "unclear"


def test_out_of_memory_fails_one_and_the_rest_go_on():
    program = Simulated(gains=GAINS, ends={"workers n=4": "out-of-memory", "tf32": "failed"})
    results = try_all(program, NAMES)
    check(results)
    assert row(results, "workers", n=4).verdict == "failed"
    assert quoted(row(results, "workers", n=4)) == ["workers n=4: out-of-memory."]
    assert row(results, "workers", n=4).speedup is None
    assert [name for name, _ in program.launched].count("workers n=4") == 1
    assert [name for name, _ in program.launched].count("tf32") <= 1
    assert recommended(results) == [("workers", {"n": 2}), ("fused", {})]


def test_any_other_expected_error_ends_the_trials_with_a_doubt():
    class DiskFull(Simulated):
        def __call__(self, fixes, *, seed_offset=0):
            if len(self.launched) == 8:
                raise TorchdoctorError("The run folder's disk is full.")
            return super().__call__(fixes, seed_offset=seed_offset)

    results = try_all(DiskFull(gains=GAINS), NAMES)
    check(results)
    assert [doubt.fact for doubt in results.doubts] == ["trials-stopped"]
    assert (
        "disk is full" in results.doubts[0].values["why"]["values"]["message"]
        and not results.interrupted
    )


def test_a_baseline_that_fails_twice_ends_the_trials_with_a_doubt():
    class Breaks(Simulated):
        def __call__(self, fixes, *, seed_offset=0):
            timing = super().__call__(fixes, seed_offset=seed_offset)
            if not fixes and len(self.launched) > 6:
                return dataclasses.replace(
                    timing, ended="failed", why=message("Port in use."), step_s=[]
                )
            return timing

    results = try_all(Breaks(gains=GAINS), NAMES)
    check(results)
    [doubt] = [x for x in results.doubts if x.fact == "untouched-unmeasured-twice"]
    assert "Port in use" in json.dumps(doubt.values)


@pytest.mark.parametrize(
    ("state", "verdict", "told"),
    [
        ("refused", "refused", "says-why"),
        ("pending", "refused", "says-why"),
        ("failed", "failed", "could-not-apply"),
    ],
)
def test_a_fix_that_did_not_take_effect_has_no_speed_up(state, verdict, told):
    results = try_all(Simulated(gains=GAINS, states={"fused": state}), NAMES)
    found = row(results, "fused")
    assert (found.verdict, why(found), found.speedup) == (verdict, [told], None)
    (told_why,) = found.why
    assert told_why == says_why("fused") or told_why.values["why"] == within(says_why("fused"))
    assert recommended(results) == [("workers", {"n": 4})]


def test_a_fix_of_which_nothing_was_heard_is_refused():
    class Silent(Simulated):
        def _applied(self, fixes):
            return []

    results = try_all(Silent(gains=GAINS), ["fused", "tf32"])
    found = row(results, "fused")
    assert (found.verdict, found.speedup) == ("refused", None)
    assert found.why == [fact("found-nothing", fix="fused")]


def same(fixes, seed):
    return [2.0 / (1 + 0.1 * i) + 0.05 * math.sin(5 * i + 3 * seed) for i in range(40)]


def test_a_faster_fix_that_changes_training_is_never_recommended():
    def losses(fixes, seed):
        found = same(fixes, seed)
        return [2.0] * 40 if any(f == "workers" for f, _ in fixes) else found

    results = try_all(Simulated(gains=GAINS, losses=losses), NAMES)
    assert recommended(results) == [("fused", {})]
    assert row(results, "workers", n=4).numerics == "changed"
    assert "results-changed" in why(row(results, "workers", n=4))


def test_a_fix_that_repeats_data_is_never_recommended_not_even_with_permission():
    def fingerprints(fixes, seed):
        numbers = [n // 2 for n in range(40)] if fixes and fixes[0][0] == "twice" else range(40)
        return [Fingerprint(input=f"x{n}", label=f"y{n}") for n in numbers]

    program = Simulated(gains={"twice": 2.0}, losses=same, fingerprints=fingerprints)
    facts = {"twice": FixFacts(keeps_results="changes training")}
    results = try_all(program, ["twice"], facts=facts, allow_training_changes=True)
    assert recommended(results) == []
    assert row(results, "twice").numerics == "changed"


def test_a_fix_that_changes_training_needs_permission():
    facts = {"bigger": FixFacts(keeps_results="changes training")}
    for allowed in (False, True):
        program = Simulated(gains={"bigger": 2.0}, losses=lambda fixes, seed: same(fixes, 5))
        results = try_all(program, ["bigger"], facts=facts, allow_training_changes=allowed)
        assert row(results, "bigger").risk == 3
        assert bool(recommended(results)) == allowed


def test_other_seeds_are_launched_only_where_they_can_tell():
    plain = Simulated(gains=GAINS, losses=same)
    try_all(plain, NAMES)
    assert all(seed == 0 for _, seed in plain.launched)

    def reseeded(fixes, seed):
        return same(fixes, 9 if fixes else seed)

    program = Simulated(gains=GAINS, losses=reseeded)
    results = try_all(program, NAMES)
    assert [seed for name, seed in program.launched if seed] == [1, 2]
    assert row(results, "fused").numerics == "within-seed-noise"
    assert len(recommended(results)) == 2


def test_a_doubted_fix_is_recommended_only_where_training_was_seen_the_same():
    """Such as workers for a dataset that changes itself."""
    for losses, expected in (([None] * 40, False), ([1.0 / n for n in range(1, 41)], True)):
        program = Simulated(gains={"a": 1.5}, losses=lambda fixes, seed, own=losses: list(own))
        results = try_all(program, ["a"], facts={"a": FixFacts(doubted=True)})
        assert bool(recommended(results)) == expected
        if not expected:
            assert "results-unknown" in why(row(results, "a"))


def test_losses_that_cannot_be_compared_are_a_doubt_and_bar_lower_precision():
    for keeps, expected in (("exactly", True), ("lower precision", False)):
        program = Simulated(gains={"a": 1.5}, losses=lambda fixes, seed: [None] * 40)
        results = try_all(program, ["a"], facts={"a": FixFacts(keeps_results=keeps)})
        assert row(results, "a").numerics == "not-comparable"
        assert bool(recommended(results)) == expected
        facts = [doubt.fact for doubt in results.doubts]
        assert ("results-unchecked" in facts) == expected


def test_batches_that_arrive_together_are_judged_by_the_mean():
    program = Simulated(gains={"burst": 1.0}, bursts={"burst": 4})
    results = try_all(program, ["burst", "b"])
    # Its median step is 20 times shorter; it is no faster.
    assert row(results, "burst").median_speedup.estimate > 10
    assert row(results, "burst").speedup.estimate == pytest.approx(1.0, rel=0.05)
    assert recommended(results) == [] and results.decided_by == "median"


def test_two_modes_in_the_observed_launch_decide_for_the_mean():
    results = try_all(Simulated(), ["a"], steps=observed(two_modes=True))
    assert results.decided_by == "mean"


def test_without_sample_counts_time_per_step_decides():
    results = try_all(Simulated(gains={"a": 1.5}, samples_per_step=None), ["a"])
    assert results.per_step and row(results, "a").speedup.estimate == pytest.approx(1.5, rel=0.03)
    assert results.launches_s[0] == pytest.approx(0.1, rel=0.05)


def test_setup_memory_and_break_even():
    program = Simulated(gains={"compile": 2.0}, setup_s={"compile": 30.0})
    results = try_all(program, ["compile"])
    found = row(results, "compile")
    assert found.setup_s == pytest.approx(30.0)
    # 0.1 s become 0.05 s: 600 steps win 30 s back.
    assert found.break_even_steps == pytest.approx(600, rel=0.06)
    assert (found.peak_memory_bytes, found.memory_change_bytes) == (1010, 10)
    assert found.memory_growths == [pytest.approx(1.01)] * found.pairs
    assert found.cost_s == pytest.approx(found.pairs * 35.0)


@pytest.mark.slow
@pytest.mark.parametrize("noise", [TYPICAL, (0.03, 0.03, 0.15)], ids=["typical", "noisy"])
@pytest.mark.parametrize("budget_s", [None, 150.0])
def test_null_candidates_are_rarely_recommended(noise, budget_s):
    runs, false = seeds(60), 0
    for seed in runs:
        program = Simulated(noise=noise, seed=7000 + seed)
        results = try_all(program, [f"null-{i}" for i in range(8)], budget_s, seed=seed)
        false += bool(results.recommendation.fixes)
    assert false <= max(1, len(runs) * 4 // 60)


@pytest.mark.slow
def test_the_recommended_interval_covers_the_truth():
    runs, held, gains = 0, 0, {"a": 1.5, "b": 1.2}
    searches = seeds(80)
    for seed in searches:
        program = Simulated(noise=TYPICAL, seed=9000 + seed, gains=gains)
        results = try_all(program, ["null-a", "a", "null-b", "b"], None, seed=seed)
        truth = math.prod(gains.get(fix, 1.0) for fix, _ in recommended(results))
        if results.recommendation.speedup is not None:
            runs += 1
            speedup = results.recommendation.speedup
            held += speedup.low <= truth <= speedup.high
    assert runs > 0.9 * len(searches)
    assert held >= math.floor(0.92 * runs)


def test_what_takes_too_long_leaves_the_time_to_those_after_it():
    """A compilation that no longer fits must not end a run with half of its budget unused."""
    program = Simulated(gains={"c": 1.4}, setup_s={"compile": 200.0})
    results = try_all(program, ["a", "compile", "c"], 110.0, setup_s=program.setup_s)
    check(results)
    assert row(results, "compile").pairs == 0
    assert recommended(results) == [("c", {})]


def test_a_set_that_fails_does_not_take_its_members_along():
    class Clash(Simulated):
        def __call__(self, fixes, *, seed_offset=0):
            names = {fix for fix, _ in fixes}
            self.ends = {"c": "failed"} if {"b", "c"} <= names else {}
            return super().__call__(fixes, seed_offset=seed_offset)

    program = Clash(gains={"a": 1.8, "b": 1.4, "c": 1.2})
    results = try_all(program, ["a", "b", "c"], facts=LIKELY, could_gain=LARGE)
    check(results)
    assert recommended(results) == [("a", {}), ("b", {})]
    assert all(trial.verdict != "failed" for trial in results.trials if trial.fixes.only)


LIKELY = {fix: FixFacts(p_helps=0.9) for fix in ("a", "b", "c", "compile", "workers", "tf32")}
LARGE = dict.fromkeys(("a", "b", "c", "compile", "workers", "tf32"), 4.0)


def test_a_fix_that_compiles_once_gets_its_pairs_when_that_is_done():
    """The first launch takes most of the budget, and those after it are cheap."""

    class Compiles(Simulated):
        def __call__(self, fixes, *, seed_offset=0):
            first = not any(name == "compile" for name, _ in self.launched)
            self.setup_s = {"compile": 50.0 if first else 1.0}
            return super().__call__(fixes, seed_offset=seed_offset)

    program = Compiles(gains={"compile": 4.0})
    names, announced = ["compile", "null-a", "null-b"], {"compile": 40.0}
    results = try_all(program, names, 98.0, setup_s=announced, facts=LIKELY, could_gain=LARGE)
    check(results)
    assert recommended(results) == [("compile", {})]


def test_a_setting_that_helps_is_tried_beyond_what_was_named() -> None:
    """Workers that wait for a disk: the fix names 2 and 4, and 16 would be the best."""
    gains = {"workers n=2": 1.2, "workers n=4": 1.5, "workers n=8": 2.0, "workers n=16": 2.8}
    ladder = Ladder(setting="n", least=1, most=64, today=0)
    program = Simulated(gains=gains)
    facts = {"workers": FixFacts(ladder=ladder, p_helps=0.9)}
    names = ["workers n=2", "workers n=4", "amp"]
    results = try_all(program, names, facts=facts, could_gain={"workers": 6.0})
    (fix,) = results.recommendation.fixes
    assert (fix.fix, fix.settings) == ("workers", {"n": 16})


def test_a_fix_that_halves_the_speed_leaves_its_time_to_others() -> None:
    """Persistent workers had, and plain ones took the rest of a minute."""
    program = Simulated(gains={"kept n=1": 0.5, "plain n=1": 0.45, "fused": 1.4})
    ladder = Ladder(setting="n", least=1, most=4, today=0)
    within = FixFacts(includes=frozenset(["plain"]), p_helps=0.7)
    facts = {"kept": within, "plain": FixFacts(ladder=ladder, p_helps=0.6)}
    facts["fused"] = FixFacts(p_helps=0.2)
    could_gain = {"kept": 2.0, "plain": 1.6, "fused": 1.5}
    results = try_all(
        program, ["kept n=1", "plain n=1", "fused"], 60.0, facts=facts, could_gain=could_gain
    )
    launched = [name for name, _ in program.launched]
    assert launched.count("kept n=1") == 1 and "plain n=1" not in launched, launched
    assert [fix.fix for fix in results.recommendation.fixes] == ["fused"]


def test_the_progress_line_names_what_is_measured_and_the_best_so_far():
    events = []
    program = Simulated(gains=GAINS)
    try_all(program, NAMES, 400.0, progress=events.append, facts=LIKELY, could_gain=LARGE)
    assert {event.phase for event in events} == {"confirm"}
    assert events[-1].launches_done == len(program.launched)
    assert "workers (n=4)" in events[-1].best and events[-1].budget_s == 400.0
    elapsed = [event.elapsed_s for event in events]
    assert elapsed == sorted(elapsed)


@pytest.mark.parametrize(
    ("gains", "explained"), [((1.8, 1.6), 1 / 0.6), ((1.5, 1.3), None)], ids=["beyond", "within"]
)
def test_a_gain_beyond_what_the_fixes_work_on_is_said(
    gains: tuple[float, float], explained: float | None
) -> None:
    """Beside an interval that reaches below what is explained nothing contradicts it."""
    program = Simulated(gains=dict(zip("ab", gains, strict=True)))
    candidates = [
        Candidate(fixes=FixSet.of(fix), ceiling=2.0, bound=1.25, named="cost") for fix in "ab"
    ]
    results = try_all(program, [], tried=candidates, facts=LIKELY)
    assert {fix for fix, _ in recommended(results)} == {"a", "b"}
    assert results.recommendation.at_most == (explained and pytest.approx(explained))
    beyond = fact("beyond-its-part", bound=pytest.approx(1 / 0.6))
    told = [trial for trial in results.trials if beyond in trial.why]
    assert bool(told) is (explained is not None)
    for trial in results.trials:
        assert trial.at_most is None or trial.speedup is None or trial.speedup.low > trial.at_most


def test_a_decided_search_leaves_the_rest_of_its_time() -> None:
    program = Simulated(gains={"a": 5.6})
    results = try_all(program, ["a", "null"], 300.0, facts=LIKELY, could_gain={"a": 8.0})
    assert recommended(results) == [("a", {})] and program.now < 150.0
