from __future__ import annotations

import numpy as np
import pytest
from event_sequences import Script

from torchdoctor.observe.events import read_events, read_observed
from torchdoctor.observe.step_finding import StepsFound, find_boundary
from torchdoctor.observe.steps import (
    PHASES,
    count_samples,
    cycle_length,
    settled_after,
    shows_slope,
    step_statistics,
    window_ns,
)
from torchdoctor.probe import step_log


def found_in(*scripts) -> tuple[list, StepsFound]:
    events = {pid: script.events() for pid, script in enumerate(scripts, 1)}
    found = find_boundary(events, {})
    assert isinstance(found, StepsFound), found
    return [events[pid] for pid in found.trainers], found


def statistics(*scripts, **options):
    trainers, found = found_in(*scripts)
    return step_statistics(trainers, found, **options)


def phase_sum(figures) -> float:
    return sum(getattr(figures, f"{name}_s") for name in PHASES)


def plain(steps=40, fetch_ms=1.0) -> Script:
    script = Script()
    script.start_loader()
    for _ in range(steps):
        script.train_step(fetch_ms)
    return script


def test_phases_of_a_plain_loop():
    figures = statistics(plain(fetch_ms=4.0))
    assert figures.median_s == pytest.approx(0.011)
    assert figures.data_wait_s == pytest.approx(0.004)
    assert figures.forward_s == pytest.approx(0.002)
    assert figures.backward_s == pytest.approx(0.003)
    assert figures.optimizer_s == pytest.approx(0.001)
    assert figures.other_s == pytest.approx(0.001)
    assert phase_sum(figures) == pytest.approx(figures.mean_s)
    assert (figures.warmup_steps, figures.steps, figures.total_steps_seen) == (10, 28, 38)
    assert figures.samples_per_step == pytest.approx(8)
    assert (figures.backwards_per_step, figures.optimizer_steps_per_step) == (1, 1)
    assert figures.first_step_s == pytest.approx(0.011)
    assert not figures.two_modes
    assert figures.cycle_steps is None


def test_a_closure_is_forward_and_backward_not_optimizer():
    script = Script()
    for _ in range(40):
        with script.bracket(step_log.OPTIMIZER_BEGIN):
            script.pause(1.0)
            for _ in range(2):
                script.forward(2.0)
                script.backward(3.0)
    figures = statistics(script)
    assert figures.forward_s == pytest.approx(0.004)
    assert figures.backward_s == pytest.approx(0.006)
    assert figures.optimizer_s == pytest.approx(0.001)
    assert phase_sum(figures) == pytest.approx(figures.mean_s)


def test_each_optimizer_has_its_own_updates_without_its_closure():
    script = Script()
    for _ in range(40):
        with script.bracket(step_log.OPTIMIZER_BEGIN, 0):  # LBFGS: closure, direction, closure
            script.pause(4.0)  # of the closure: the loss, printing
            script.forward(2.0)
            script.backward(3.0)
            script.pause(0.5)
        script.forward(2.0)
        script.backward(3.0)
        with script.bracket(step_log.OPTIMIZER_BEGIN, 2):  # a wrapper, and what it wraps
            script.pause(0.25)
            script.optimizer(1.0, ident=1)
    figures = statistics(script)
    assert figures.optimizer_s == pytest.approx(0.00575)
    assert figures.update_s == pytest.approx([0.0005, 0.001, 0.00025])


def test_a_fetch_or_copy_inside_a_forward_is_counted_once():
    script = Script()
    for _ in range(40):
        with script.bracket(step_log.FORWARD_BEGIN, value=3):
            script.pause(1.0)
            script.fetch(5, ms=2.0)
            with script.bracket(step_log.COPY_BEGIN, 0, value=4096):
                script.pause(0.5)
        script.backward(3.0)
        script.optimizer(1.0)
    figures = statistics(script)
    assert figures.forward_s == pytest.approx(0.001)
    assert figures.data_wait_s == pytest.approx(0.002)
    assert figures.h2d_copy_s == pytest.approx(0.0005)
    assert phase_sum(figures) == pytest.approx(figures.mean_s)
    assert figures.pageable_copies_per_step == pytest.approx(1.0)


def test_an_end_that_never_came_does_not_swallow_the_run():
    script = plain(10)
    script.log(step_log.FORWARD_BEGIN, 0, 3)  # raised, and the script went on
    for _ in range(40):
        script.train_step()
    figures = statistics(script)
    assert figures.forward_s == pytest.approx(0.002)
    assert figures.other_s == pytest.approx(0.001)


def test_inline_batch_preparation_is_the_gap_before_the_first_forward():
    script = Script()
    for _ in range(40):
        script.pause(5.0)
        script.forward()
        script.backward()
        script.pause(0.7)
        script.optimizer()
    figures = statistics(script)
    assert figures.boundary.kind == "optimizer"
    assert figures.before_forward_s == pytest.approx(0.005)
    assert figures.other_s == pytest.approx(0.0057)
    assert figures.samples_per_step is None


def test_what_is_done_with_a_batch_on_the_device_is_not_its_preparation():
    """Augmenting on the GPU keeps the host busy too, and no data loader could take it over."""
    script = Script()
    script.start_loader()
    for _ in range(40):
        script.fetch()
        script.pause(0.5)
        with script.bracket(step_log.COPY_BEGIN, 0, value=4096):
            script.pause(0.25)
        script.pause(4.0)
        script.forward()
        script.backward()
        script.optimizer()
    assert statistics(script).before_forward_s == pytest.approx(0.0005)


def test_the_gap_between_the_forwards_of_one_step_is_not_batch_preparation():
    script = Script()
    script.start_loader()
    for _ in range(40):
        script.fetch()
        script.pause(0.5)
        script.forward(model=0)
        script.pause(4.0)
        script.forward(model=1)
        script.backward()
        script.optimizer()
    assert statistics(script).before_forward_s == pytest.approx(0.0005)


def test_validation_is_told_apart():
    script = Script()
    for _ in range(5):
        script.start_loader(0, ms=20.0)
        for _ in range(10):
            script.train_step()
        script.exhaust(0)
        script.start_loader(1, ms=5.0)
        for _ in range(4):
            script.fetch(1, ms=3.0)
            script.forward(grad=False, train=False)
        script.exhaust(1, ms=0.5)
    figures = statistics(script, warmup=9, window=30)
    # Three epochs of ten: each has one validation of 4 x 5 ms, a start and an end.
    assert figures.steps == 30
    assert figures.cycle_steps == 10
    assert figures.evaluation_s * 30 == pytest.approx(3 * (0.020 + 0.005 + 0.0005))
    assert (figures.evaluations, figures.evaluation_every) == (3, 10)
    assert figures.evaluation_wait_s * 30 == pytest.approx(3 * (4 * 0.003 + 0.005 + 0.0005))
    assert figures.loader_start_s * 30 == pytest.approx(3 * 0.025)
    assert figures.samples_per_step == pytest.approx(8)
    assert figures.batches_per_step == pytest.approx(1)
    assert phase_sum(figures) == pytest.approx(figures.mean_s)


@pytest.mark.parametrize(("at", "every"), [((20, 40, 60), 20), ((20, 31, 60), None)])
def test_how_often_evaluation_comes_is_the_distance_of_its_steps(at, every):
    """Three in 60 steps are not one every 20 steps by their number: a window may hold one more."""
    script = Script()
    script.start_loader(0)
    for step in range(1, 75):
        script.train_step()
        if step in at:
            script.forward(grad=False, train=False)
    figures = statistics(script, warmup=15, window=50)
    assert (figures.evaluations, figures.evaluation_every) == (3, every)


def test_a_frozen_teacher_is_no_evaluation():
    script = Script()
    script.start_loader()
    for _ in range(40):
        script.fetch()
        script.forward(model=1, grad=False, train=False)
        script.forward(model=0)
        script.backward()
        script.optimizer()
    assert statistics(script).evaluation_s == 0


def test_evaluation_of_the_trained_model_without_a_loader():
    script = Script()
    for _ in range(40):
        script.forward(2.0)
        script.backward()
        script.optimizer()
        script.forward(1.5, grad=True, train=False)
    assert statistics(script).evaluation_s == pytest.approx(0.0015)
    assert statistics(script).evaluations == statistics(script).steps


def test_a_loss_over_several_batches_is_no_evaluation():
    script = Script()
    script.start_loader()
    for _ in range(20):
        for _ in range(3):
            script.fetch()
            script.forward()
        script.backward()
        script.optimizer()
    figures = statistics(script)
    assert figures.evaluation_s == 0
    assert figures.batches_per_step == pytest.approx(3)
    assert figures.samples_per_step == pytest.approx(24)


def test_workers_that_start_anew_each_epoch():
    script = Script()
    for _ in range(6):
        script.start_loader(0, ms=30.0)
        for batch in range(10):
            script.train_step(fetch_ms=81.0 if batch == 0 else 1.0)
        script.exhaust(0)
    figures = statistics(script, warmup=19, window=30)
    assert figures.first_batch_s * 30 == pytest.approx(3 * 0.080)
    assert figures.fetch_median_s == pytest.approx(0.001)


def test_two_modes_of_step_and_their_cycle():
    script = Script()
    for _ in range(8):
        for _ in range(40):
            script.forward(0.5, grad=False)
        for _ in range(12):
            script.forward()
            script.backward()
            script.optimizer()
    figures = statistics(script)
    assert figures.two_modes
    assert figures.cycle_steps == 12


def test_accumulation_is_a_cycle():
    script = Script()
    script.start_loader()
    for batch in range(96):
        script.fetch()
        script.forward()
        script.backward()
        if batch % 4 == 3:
            script.optimizer()
    figures = statistics(script)
    assert figures.cycle_steps == 4
    assert figures.optimizer_steps_per_step == pytest.approx(0.25, abs=0.02)


def test_samples_of_several_trainers_add_up_as_rates():
    slow = Script()
    slow.start_loader()
    for _ in range(20):
        slow.train_step(fetch_ms=8.0)  # 15 ms
    figures = statistics(plain(), slow)
    assert figures.trainers == 2
    # 8 ms a step and 8 samples, beside 8 samples in 15 ms.
    assert figures.samples_per_step == pytest.approx(8 + 8 * 8 / 15)


def test_loaders_that_take_turns_all_count():
    """One loader for each fold or epoch: each of their batches is a step's."""
    script = Script()
    for fold in range(4):
        script.start_loader(fold)
        for _ in range(10):
            script.fetch(fold, samples=32)
            script.backward()
        script.exhaust(fold)
    assert statistics(script).samples_per_step == pytest.approx(32, rel=0.05)


def test_of_two_loaders_that_are_zipped_one_counts():
    script = Script()
    script.start_loader(0)
    script.start_loader(1)
    for _ in range(30):
        script.fetch(0, samples=8)
        script.fetch(1, samples=24)
        script.backward()
    counted = count_samples(script.events(), 0, len(script.events()), None)
    assert counted == pytest.approx(30 * 24)


def test_samples_of_explicit_steps_count():
    script = Script()
    for _ in range(30):
        script.backward()
        script.log(step_log.EXPLICIT_STEP, value=5)
    assert statistics(script).samples_per_step == pytest.approx(5)


def test_batches_of_unknown_size_have_no_samples():
    script = Script()
    script.start_loader()
    for _ in range(30):
        script.fetch(samples=-2)
        script.backward()
    assert statistics(script).samples_per_step is None


def test_garbage_collection_is_counted_beside_the_phases():
    script = Script()
    for _ in range(30):
        script.forward()
        with script.bracket(step_log.BACKWARD_BEGIN):
            script.pause(1.0)
            with script.bracket(step_log.GC_BEGIN, value=2):
                script.pause(0.5)
    figures = statistics(script)
    assert figures.gc_s == pytest.approx(0.0005)
    assert figures.backward_s == pytest.approx(0.0015)


def test_a_short_program_keeps_what_there_is():
    figures = statistics(plain(6), program_ended=True)
    assert (figures.warmup_steps, figures.steps) == (1, 3)
    assert figures.program_ended


def test_the_window_on_the_clock():
    trainers, found = found_in(plain())
    figures = step_statistics(trainers, found)
    begin, end = window_ns(trainers[0], found, figures)
    assert (end - begin) / 1e9 == pytest.approx(figures.mean_s * figures.steps)


def test_slope_and_settling():
    falling = np.linspace(2.0, 1.0, 10)
    flat = np.ones(20) + np.tile([0.0, 0.01], 10)
    assert shows_slope(falling)
    assert not shows_slope(flat)
    assert not shows_slope(np.linspace(1.0, 2.0, 10))
    assert not shows_slope(np.linspace(1.001, 1.0, 10))
    assert not shows_slope(np.array([9.0, *np.ones(9)]))
    settled = settled_after(np.concatenate([np.linspace(3.0, 1.0, 30), flat]))
    assert 31 <= settled <= 40
    assert settled_after(np.ones(9)) is None
    assert settled_after(flat) == 10


def test_cycle_length():
    none = np.array([], dtype=int)
    assert cycle_length(np.array([9, 19, 29]), np.ones(40)) == 10
    assert cycle_length(np.array([9]), np.ones(40)) == 10
    assert cycle_length(none, np.ones(40)) is None
    periodic = np.ones(40)
    periodic[7::8] = 5.0
    assert cycle_length(none, periodic) == 8
    irregular = np.ones(40)
    irregular[[3, 9, 30]] = 5.0
    assert cycle_length(none, irregular) is None


def test_what_passes_between_two_epochs_prepares_no_batch():
    script = Script()
    for _ in range(6):
        script.start_loader()
        for _ in range(9):
            script.train_step()
        script.exhaust()
        script.pause(90.0)
    figures = statistics(script, warmup=9, window=36)
    assert figures.between_epochs_s == pytest.approx(0.010, rel=0.1)
    assert figures.before_forward_s < 0.001


def on_gpu(step_ms: float, unknown: int = 0) -> Script:
    """A host that runs ahead of a GPU, which comes to the end of each backward every `step_ms`.

    The last rows' times on the GPU are not known yet.
    """
    script = plain()
    for step, row in enumerate([r for r in script.rows if r[0] == step_log.BACKWARD_END]):
        if step < 40 - unknown:
            value = int(step * step_ms * 1e6)
            script.rows.append((step_log.DEVICE, 0, row[2], value))
    return script


def test_a_gpus_steps_take_what_the_gpu_takes_while_the_host_runs_ahead():
    """The host's steps take 8 ms."""
    figures = statistics(on_gpu(160.0))
    assert figures.median_s == pytest.approx(0.16)
    assert figures.mean_s == pytest.approx(0.16)
    assert phase_sum(figures) == pytest.approx(figures.mean_s)
    assert figures.data_wait_s == 0.0


def test_a_gpu_that_comes_to_events_behind_the_host_was_busy():
    # Told at the ends of backwards alone: before the next one the host works for 8 ms.
    assert statistics(on_gpu(160.0)).device_busy_s == pytest.approx(0.16)
    # In step with the host it may have idled all the time; the host alone tells nothing.
    assert statistics(on_gpu(8.0)).device_busy_s == pytest.approx(0.0, abs=1e-6)
    assert statistics(plain()).device_busy_s is None


def test_what_the_gpu_has_not_come_to_makes_no_step():
    assert statistics(on_gpu(160.0, unknown=30)).total_steps_seen == 8
    lost = on_gpu(160.0)
    lost.log(step_log.DEVICE, value=-1)
    assert statistics(lost).median_s == pytest.approx(0.008)


def test_steps_before_a_profiler_window_are_on_the_gpus_clock(tmp_path):
    script = on_gpu(160.0)
    ends = [row for row in script.rows if row[0] == step_log.BACKWARD_END]
    script.rows.append((step_log.OBSERVED, 0, ends[20][2] + 1, 0))
    rows = np.array(script.rows, dtype="<i8")
    (tmp_path / "events-1.bin").write_bytes(rows.tobytes())
    events, _, _ = read_observed(tmp_path)
    found = find_boundary(events, {})
    assert isinstance(found, StepsFound)
    figures = step_statistics(list(events.values()), found)
    assert figures.device_clock and figures.total_steps_seen == 19
    assert [figures.median_s, figures.device_busy_s] == pytest.approx([0.16, 0.16])


def test_a_row_that_a_kill_cut_off_is_dropped(tmp_path):
    rows = np.arange(12, dtype="<i8").reshape(3, 4)
    path = tmp_path / "events-1.bin"
    path.write_bytes(rows.tobytes()[:-5])
    assert len(read_events(path)) == 2
    assert len(read_events(tmp_path / "events-2.bin")) == 0
