"""When a run's pairs are launched side by side, and in which blocks."""

from __future__ import annotations

import contextlib
import math
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from simulated_program import observed

from torchdoctor.advice import catalogue
from torchdoctor.bench import block_plan, measurement
from torchdoctor.bench.engine import Engine
from torchdoctor.bench.measurement import Pace, ProgramLaunches, turns_of_trials
from torchdoctor.launch.launch_spec import UNTOUCHED, LaunchSpec
from torchdoctor.observe.window import Window, choose_window
from torchdoctor.schema import (
    Environment,
    Evidence,
    FixSet,
    LaunchTiming,
    LoaderFacts,
    Location,
    ProcessFacts,
    Recording,
    SensorStatistics,
    UsedDevice,
    Workload,
    fact,
)
from torchdoctor.trials.arm_specs import ArmSpecs


def chosen(step_s: float, budget_s: float = 120.0, start_s: float = 4.0, **more: Any) -> Any:
    """(blocks, seconds of two launches that follow each other)."""
    mode, drops, memory = (
        more.pop(x, y) for x, y in (("mode", "overlay"), ("cold", False), ("memory", 10**9))
    )
    trainers, uuids = more.pop("processes", []), more.pop("gpu_uuids", set())
    known = {"median_s": step_s, "mean_s": step_s, "p10_s": step_s, "p90_s": step_s}
    steps = observed(**{**known, "warmup_steps": 10, **more})
    seen: Any = SimpleNamespace(
        steps=steps,
        start_s=start_s,
        sensors=SensorStatistics(rss_peak_bytes=memory),
        trainers=trainers,
        gpu_uuids=uuids,
        logs_phases=False,
    )
    window: Window = choose_window(steps, budget_s)
    turns = turns_of_trials(seen, window, sandbox=mode, cold=drops)
    return turns, 2 * Pace.of(seen).launch_s(window)


@pytest.mark.parametrize("step_s", [0.002, 0.02, 0.1, 0.2, 0.5, 3.0])
@pytest.mark.parametrize("budget_s", [50.0, 120.0, 300.0])
@pytest.mark.parametrize("start_s", [0.5, 2.0, 4.0, 15.0])
def test_steps_of_any_length_take_turns_for_about_the_price_of_two_launches(
    step_s: float, budget_s: float, start_s: float
) -> None:
    turns, two_launches_s = chosen(step_s, budget_s, start_s)
    assert not isinstance(turns, Evidence) and turns.blocks >= 4
    assert turns.pair_s <= 2.5 * two_launches_s


def test_blocks_hold_whole_epochs_for_workers_that_each_of_them_starts_anew() -> None:
    """A pair beside a cache took 12 s of which 5.4 s were two whole epochs of even steps."""
    turns, _ = chosen(0.05, cycle_steps=60)
    assert turns.block_steps < 20 and turns.blocks >= 4
    assert turns.in_epochs.block_steps == 60 and turns.in_epochs.blocks >= 2
    # A forked launch starts in half a second, which made whole epochs seem too dear: in turns then.
    forked, _ = chosen(0.038, start_s=0.5, cycle_steps=60)
    assert not isinstance(forked, Evidence) and forked.block_steps < 20
    uneven, _ = chosen(0.05, cycle_steps=60, two_modes=True)
    assert uneven.block_steps == 60
    accumulating, _ = chosen(0.05, cycle_steps=4)
    assert accumulating.block_steps % 4 == 0


def test_launches_follow_each_other_where_both_at_once_would_do_harm_or_mislead() -> None:
    assert isinstance(
        chosen(0.05, mode="none")[0], Evidence
    )  # both would write to the user's files
    assert isinstance(chosen(0.05, cold=True)[0], Evidence)  # one would warm the files of the other
    assert isinstance(chosen(0.05, memory=10**15)[0], Evidence)
    assert isinstance(chosen(0.05, trainers=2)[0], Evidence)
    assert isinstance(
        chosen(0.05, 300.0, cycle_steps=160)[0], Evidence
    )  # of a window, but of no block
    assert isinstance(chosen(0.05, total_steps_seen=25, program_ended=True)[0], Evidence)


def launched(
    loader: dict[str, Any],
    fix: str = "decoded-cache",
    settings: dict[str, Any] | None = None,
    patched: bool = False,
    **more: Any,
) -> int:
    """Warm-up iterations of a launch with a fix; 10 is what the window has."""
    return launched_and_doubted(loader, fix, settings, patched, **more)[0]


def launched_and_doubted(
    loader: dict[str, Any],
    fix: str = "decoded-cache",
    settings: dict[str, Any] | None = None,
    patched: bool = False,
    **more: Any,
) -> tuple[int, list[str]]:
    """Likewise, and what is doubted for it."""
    steps = observed(mean_s=0.02, median_s=0.02, **more)
    facts = LoaderFacts(ident=0, batches=90, **loader)
    recording = Recording(
        workload=Workload(command=[], cwd=""),
        environment=Environment(),
        steps=steps,
        processes=[ProcessFacts(pid=1, loaders=[facts])],
    )
    warmups: list[int] = []

    def time(arm: LaunchSpec, *_: Any, **__: Any) -> LaunchTiming:
        warmups.append(arm.plan["warmup_steps"])
        return LaunchTiming(ended="measured", step_s=[0.02])

    seen: Any = SimpleNamespace(steps=steps, start_s=4.0, logs_phases=False)
    recorder: Any = SimpleNamespace(time=time)
    window = Window(warmup_steps=10, measure_steps=50, max_window_s=4.0)
    arms = ArmSpecs(catalogue.fixes(), recording)
    engine = Engine(ProgramLaunches.of_trials(recorder, seen, window), random.Random(0))
    fixes = FixSet({"set-to-none": {}, fix: settings or {"limit_bytes": 1}})
    patch = arms.patch(fixes)[0] if patched else None
    arm = arms.of(fixes) if patch is None else arms.patched(patch, fixes)
    engine.launch(arm, most_s=100.0)
    assert engine.warmup_steps(arm) == warmups[0]
    return warmups[0], arms.unsettled(fixes, warmups[0])


def test_a_warm_up_that_was_too_short_for_a_fix_is_a_doubt() -> None:
    """The gain of a cache was that of a cache being filled, and nothing said so."""
    long = {"dataset_length": 96_000, "batch_size": 16}
    (said,) = launched_and_doubted(long)[1]
    assert said == fact("measured-while-filling", fix="decoded-cache")
    assert launched_and_doubted({"dataset_length": 960, "batch_size": 16})[1] == []
    many = {"fix": "loader-workers", "settings": {"num_workers": 256}}
    (said,) = launched_and_doubted(long, **many)[1]
    assert said == fact("measured-with-stock", fix="loader-workers")
    assert launched_and_doubted(long, "loader-workers", {"num_workers": 2})[1] == []


def test_a_cache_is_measured_once_it_is_filled() -> None:
    """Half of a window lay in the first epoch, and 2.9x came out as 2.1x."""
    epoch = {"dataset_length": 960, "batch_size": 16}
    assert launched(epoch) == 60
    assert launched(epoch, fix="set-to-none") == 10
    assert launched(epoch, batches_per_step=2.0) == 30
    assert launched({"dataset_length": 96_000, "batch_size": 16}) == 10, "no time for an epoch"
    assert launched({"dataset_length": 4000, "batch_size": 16}) == 250, "4.8 s beside 5.2"
    assert launched(epoch, program_ended=True, total_steps_seen=100) == 10, "it ends before that"
    assert launched({"dataset_length": None, "batch_size": 16}) == 10


def test_what_new_workers_made_ready_is_used_up_before_they_are_measured() -> None:
    """Eight of them fed half of a short pair from stock: 4.8x came out as 8.1x."""
    alone = {"dataset_length": 9600, "batch_size": 16}
    assert launched(alone, fix="loader-workers", settings={"num_workers": 2}) == 10
    assert launched(alone, fix="loader-workers", settings={"num_workers": 16}) == 64
    workers = alone | {"num_workers": 4, "prefetch_factor": 3}
    assert launched(workers, fix="persistent-workers", settings={"limit_bytes": 1}) == 10
    assert launched(workers, fix="prefetch-factor", settings={"prefetch_factor": 8}) == 64
    many = {"num_workers": 8}
    assert launched(workers, fix="loader-workers", settings=many) == 48
    assert launched(workers, fix="loader-workers", settings=many, batches_per_step=2.0) == 24


def test_the_patch_is_measured_as_what_it_makes_permanent_is(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\nloader = torch.utils.data.DataLoader(data, batch_size=16)\n")
    where = Location(file=str(script), line=2)
    alone = {"dataset_length": 9600, "batch_size": 16, "location": where}
    many = {"num_workers": 16}
    assert launched(alone, fix="loader-workers", settings=many, patched=True) == 64


def test_pairs_of_a_cache_warm_up_for_an_epoch_where_that_no_more_than_doubles_them() -> None:
    turns, _ = chosen(0.02)
    filled = turns.warmed_up(60)
    assert filled.warmup_steps == 60 and filled.blocks == turns.blocks
    assert filled.pair_s == pytest.approx(turns.pair_s + 50 * 0.02), "of the cache's side alone"
    assert turns.warmed_up(100_000) == turns and turns.warmed_up(0) == turns


def test_each_side_of_a_pair_warms_up_and_waits_as_its_arm_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The untouched program warmed up for the epoch that fills the cache beside it."""
    plans: list[dict[str, Any]] = []

    def both(starts: Any, *_: Any) -> Any:
        plans[:] = [start.args[0].plan["turns"] for start in starts]
        return [LaunchTiming(ended="measured")] * 2

    monkeypatch.setattr(measurement, "take_turns", both)
    turns, _ = chosen(0.2, cycle_steps=20)
    seen: Any = SimpleNamespace(
        steps=observed(mean_s=0.2, median_s=0.2), start_s=4.0, logs_phases=False
    )
    recorder: Any = SimpleNamespace(time=print, image=lambda arm: None, end_by_s=math.inf)
    window = Window(warmup_steps=10, measure_steps=50, max_window_s=4.0)
    launches = measurement.ProgramLaunches.of_trials(recorder, seen, window, turns)

    def told(**arm: Any) -> list[tuple[int, int, int]]:
        arms = UNTOUCHED, LaunchSpec(name="arm", **arm)
        launches.together(arms, random.Random(0), 100.0)
        of_each = [(x["warmup_steps"], x["block_steps"], x["discard_steps"]) for x in plans]
        return sorted(of_each)

    least = turns.block_steps
    assert told() == [(10, least, 1), (10, least, 1)]
    assert told(settled_after=40) == [(10, least, 1), (40, least, 1)]
    # What its workers had waited for is used up before a block begins, and an epoch starts them.
    assert told(workers=8) == [(10, 20, 8), (10, 20, 8)]


def test_an_arm_has_the_workers_of_the_loader_that_its_fixes_make() -> None:
    """Of a deeper queue its own loader's workers, also where a member cannot be switched."""
    recording = Recording(
        workload=Workload(command=[], cwd=""),
        environment=Environment(),
        steps=observed(mean_s=0.02, median_s=0.02),
        processes=[ProcessFacts(pid=1, loaders=[LoaderFacts(ident=0, batches=90, num_workers=4)])],
    )
    arms = ArmSpecs(catalogue.fixes(), recording)
    deeper = ("prefetch-factor", {"prefetch_factor": 8})
    assert (
        arms.of(FixSet([deeper])).workers
        == arms.of(FixSet([("pin-memory", {}), deeper])).workers
        == 4
    )
    compiled = ("torch-compile", {"mode": "default"})
    assert arms.of(FixSet([compiled, ("loader-workers", {"num_workers": 8})])).workers == 8
    assert arms.of(FixSet([compiled])).workers == 0


def test_a_pair_begins_with_fewer_turns_where_no_whole_pair_fits() -> None:
    """Search ended at 13 s of 30 with two fixes untried: a whole pair would have taken 18 s."""
    turns, _ = chosen(0.05)
    pace = Pace(start_s=2.0, step_s=0.05, boundary=observed().boundary)
    window = Window(warmup_steps=10, measure_steps=50, max_window_s=4.0)

    def priced(left_s: float, **turns_of: Any) -> tuple[float, float]:
        recorder: Any = SimpleNamespace(left_s=left_s)
        launches = ProgramLaunches(recorder=recorder, pace=pace, window=window, **turns_of)
        return launches.expected_s, launches.shortened_s(turns.pair_s / 2)

    whole = turns.pair_s / 2
    assert priced(math.inf, turns=turns) == (whole, whole)
    short_s = 0.9 * turns.pair_s
    assert all(2.05 * each <= short_s for each in priced(short_s, turns=turns))
    assert priced(1.0, turns=turns) == (whole, whole), "not even four turns fit"
    alone_s = pace.launch_s(window)
    assert priced(alone_s, turns=None) == (alone_s, whole), "launches in turns have one window"


def on_a_gpu(reserved: int, free: int | None, total: int | None = 80 << 30) -> list[ProcessFacts]:
    device = UsedDevice(
        index=0, name="a GPU", uuid="aa", memory_bytes=total, free_bytes=free,
        reserved_bytes=reserved, peak_reserved_bytes=reserved,
    )  # fmt: skip
    return [ProcessFacts(pid=1, used_devices=[device])]


def test_launches_follow_each_other_on_a_gpu_that_takes_one_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[set[str]] = []

    class Driver:
        def takes_one_process(self, uuids: set[str]) -> bool:
            asked.append(uuids)
            return True

    monkeypatch.setattr(block_plan.nvml, "session", lambda: contextlib.nullcontext(Driver()))
    why, _ = chosen(0.1, processes=on_a_gpu(1 << 20, 1 << 34), gpu_uuids={"aa"})
    assert why == fact("gpu-takes-one-process")
    assert asked == [{"aa"}]


def test_launches_share_a_gpu_that_has_room_for_both_beside_others() -> None:
    """Also where no driver tells anything: torch does, of a slice (MIG) or of another maker's."""
    gib = 1 << 30
    assert not isinstance(chosen(0.1, processes=on_a_gpu(20 * gib, 59 * gib))[0], Evidence)
    assert isinstance(chosen(0.1, processes=on_a_gpu(40 * gib, 39 * gib))[0], Evidence)
    assert isinstance(
        chosen(0.1, processes=on_a_gpu(20 * gib, 4 * gib))[0], Evidence
    )  # others have it
    assert isinstance(chosen(0.1, processes=on_a_gpu(40 * gib, None))[0], Evidence)
    assert not isinstance(chosen(0.1, processes=on_a_gpu(40 * gib, None, None))[0], Evidence)
