"""Changes planted in simulated logs are named with their cause; steady training gives no alert."""

from pathlib import Path

import numpy as np
import pytest
import watch_simulation as simulation

from torchdoctor.watch.changes import RECENT, Level, Shift, begins_at


def shifts(values: np.ndarray) -> list[tuple[int, Shift]]:
    level = Level()
    return [(at, shift) for at, x in enumerate(values) if (shift := level.add(float(x)))]


def noisy(count: int, seed: int) -> np.ndarray:
    return np.exp(np.random.default_rng(seed).normal(0, 0.05, count))


@pytest.mark.parametrize("ratio", [1.3, 2.0, 0.6])
def test_a_lasting_shift_is_found_once_and_soon(ratio: float) -> None:
    values = noisy(200, 1)
    values[100:] *= ratio
    ((at, shift),) = shifts(values)
    assert 100 + RECENT - 2 <= at <= 100 + RECENT
    assert shift.ratio == pytest.approx(ratio, rel=0.1)
    assert abs(begins_at(values[at - 2 * RECENT : at + 1], shift) - (100 - at + 2 * RECENT)) <= 1


@pytest.mark.parametrize("lasts", [1, 3, RECENT - 3])
def test_what_passes_is_no_shift(lasts: int) -> None:
    values = noisy(400, 2)
    for at in (100, 180, 260, 330):
        values[at : at + lasts] *= 3
    assert not shifts(values)


def test_a_slow_drift_and_a_first_minute_are_no_shift() -> None:
    assert not shifts(noisy(4000, 3) * np.linspace(1, 1.5, 4000))
    assert not shifts(np.concatenate([[9.0] * 5, noisy(3, 4)]))


def test_a_second_shift_is_told_against_the_first() -> None:
    values = noisy(300, 5)
    values[100:] *= 1.5
    values[200:] *= 1.5
    assert [shift.ratio for _, shift in shifts(values)] == pytest.approx([1.5, 1.5], rel=0.1)


@pytest.mark.parametrize(("name", "cause", "plant"), simulation.PLANTS)
def test_a_planted_change_is_named_within_a_minute(
    name: str, cause: str, plant: object, tmp_path: Path
) -> None:
    run, at_s = simulation.planted(plant, 8)
    (now_s, alert), *more = simulation.replayed(tmp_path, [run])
    assert alert.cause == cause, alert.sentence
    assert 0 <= now_s - at_s <= 60
    assert (
        abs(alert.t_unix_s - simulation.START_UNIX_NS / 1e9 - at_s) < 21
    )  # of a memory the means tell it
    assert alert.fact.values["step"] == alert.step and alert.sentence.endswith(".")
    assert not more


def test_one_slow_rank_is_named(tmp_path: Path) -> None:
    run = simulation.steady(8 / 60)
    step = int(np.searchsorted(run.ends_s, 300))
    alerts = list(simulation.replayed(tmp_path, simulation.ranks_of(run, 2, step)))
    (now_s, alert), *more = alerts
    assert (alert.kind, alert.cause, alert.rank) == ("slower", "forward", 2)
    assert now_s - run.ends_s[step] <= 60 and not more


@pytest.mark.parametrize(("step_s", "seed"), [(0.2, 0), (2.0, 1)])
def test_steady_training_gives_no_alert(step_s: float, seed: int, tmp_path: Path) -> None:
    run = simulation.steady(1.0, step_s, seed)
    assert not list(simulation.replayed(tmp_path, [run], 60.0))


def test_a_loss_that_is_not_finite_is_told_at_once(tmp_path: Path) -> None:
    run = simulation.steady(2 / 60)
    run.events.append(simulation.Event(t_ns=0, step=100, kind="loss", text="inf"))
    simulation.finish(run, np.random.default_rng(0))
    ((_, alert),) = simulation.replayed(tmp_path, [run])
    assert (alert.kind, alert.step, alert.fact.values["loss"]) == ("loss", 100, "inf")


def test_a_starving_training_is_told_in_its_second_minute(tmp_path: Path) -> None:
    run = simulation.steady(3 / 60)
    run.steps["wait"] += 0.3
    simulation.finish(run, np.random.default_rng(0))
    ((now_s, alert),) = simulation.replayed(tmp_path, [run])
    assert alert.kind == "starved" and now_s < 120


def test_steps_that_become_very_long_are_told_by_three_of_them(tmp_path: Path) -> None:
    run = simulation.steady(6 / 60, noise=0.2)
    step = int(np.searchsorted(run.ends_s, 240))
    run.steps = run.steps[: step + 5]
    run.steps["wait"][step:] += 23
    run.events = []
    simulation.finish(run, np.random.default_rng(0))
    alerts = [alert for _, alert in simulation.replayed(tmp_path, [run])]
    assert [alert.kind for alert in alerts] == ["slower"]
    assert abs(alerts[0].step - step) <= 1


def test_other_programs_are_no_cause_for_a_loader_that_sleeps(tmp_path: Path) -> None:
    run, at_s = simulation.planted(simulation.PLANTS[0][2], 8)
    run.machine["tree_cpu_s"] = run.process["cpu_s"]  # no worker computes
    run.machine["busy_s"] = run.process["cpu_s"]
    after = run.machine["t_ns"] >= simulation.START_NS + at_s * 1e9
    run.machine["busy_s"][after] += 5.5 * 2.5 * np.arange(after.sum())  # of 8 CPUs
    ((_, alert),) = simulation.replayed(tmp_path, [run])
    assert alert.cause == "loader-io-bound", alert.sentence


def test_a_single_long_step_is_no_change(tmp_path: Path) -> None:
    run = simulation.steady(8 / 60, noise=0.2)
    run.steps["wait"][1500] += 90
    simulation.finish(run, np.random.default_rng(0))
    assert not list(simulation.replayed(tmp_path, [run]))
