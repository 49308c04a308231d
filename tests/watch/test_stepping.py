"""Steps and phases as they are found while the events come."""

from threading import Thread

import numpy as np
import pytest
import torch

from torchdoctor.probe import step_log
from torchdoctor.watch.inside import event_rows, hooks, layout, resting, step_rows, stepping
from torchdoctor.watch.inside.event_rows import CHECKPOINT_BEGIN, CHECKPOINT_END
from torchdoctor.watch.inside.stepping import StepLog
from torchdoctor.watch.recording import PHASES, Steps

MS = 1_000_000
GRAD, EVAL = 3, 0


class Program:
    """A program that takes a millisecond from each event to the next."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, wanted: str | None = None) -> None:
        self.rows, self.told, self.found = bytearray(), [], []
        self.now = 10**12
        monkeypatch.setattr(stepping, "perf_counter_ns", lambda: self.now)
        self.log = StepLog(self.rows.extend, self._event, lambda number: number, wanted)
        self.log.on_found = lambda kind, place, again: self.found.append((kind, place))

    def _event(self, now: int, kind: str, text: str = "", **figures: float) -> None:
        self.told.append(kind)

    def does(self, code: int, ident: int = 0, value: int = 0, ms: float = 1) -> None:
        self.now += int(ms * MS)
        self.log.add(code, ident, value)

    def fetch(self, loader: int = 0, ms: float = 1) -> None:
        self.does(step_log.FETCH_BEGIN, loader)
        self.does(step_log.FETCH_END, loader, 32, ms=ms)

    def forward(self, mode: int = GRAD) -> None:
        self.now += MS
        self.log.forward(0, mode, *((96, 32) if mode == GRAD else ()))
        self.does(step_log.FORWARD_END)

    def backward(self) -> None:
        self.does(step_log.BACKWARD_BEGIN)
        self.does(step_log.BACKWARD_END)

    def update(self, optimizer: int = 0) -> None:
        self.does(step_log.OPTIMIZER_BEGIN, optimizer)
        self.does(step_log.OPTIMIZER_END, optimizer)

    def step_with_a_collection(self) -> None:
        self.fetch()
        self.forward()
        self.log.add_at(step_log.GC_BEGIN, 0, self.now)
        self.now += MS
        self.log.add_at(step_log.GC_END, 0, self.now)
        self.backward()
        self.update()

    def evaluate(self) -> None:
        for _ in range(3):
            self.fetch(loader=1)
            self.forward(EVAL)

    def new_shape(self) -> None:
        self.fetch()
        self.log.forward(0, GRAD, elements=96, rows=32, is_new=True)
        self.does(step_log.FORWARD_END)
        self.backward()
        self.update()

    def train(self, steps: int, loader: int | None = 0) -> None:
        for _ in range(steps):
            if loader is not None:
                self.fetch(loader)
            self.forward()
            self.backward()
            self.update()

    def steps(self) -> Steps:
        self.log.end()
        return Steps(rows=np.frombuffer(bytes(self.rows), list(layout.STEP_COLUMNS)))


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Program:
    return Program(monkeypatch)


def test_phases_sum_to_the_step_and_steps_follow_each_other(program: Program) -> None:
    program.train(50)
    steps = program.steps()
    assert program.found == [("loader", 0)]
    assert steps.step.tolist() == list(range(1, 51))
    assert np.allclose(steps.step_s[:-1], 0.008)  # the last one ends with its last event
    named = dict(zip(PHASES, steps.phases_s[:-1].mean(axis=0), strict=True))
    assert np.isclose(named.pop("other"), 0.004)
    assert {name for name, spent in named.items() if np.isclose(spent, 0.001)} == {
        *("wait", "forward", "backward", "optimizer"),
    }
    assert (np.diff(steps.start_ns) == 8 * MS).all()
    assert np.allclose(steps.samples, 32)


def test_without_a_loader_the_slowest_optimizer_ends_a_step(program: Program) -> None:
    for _ in range(20):
        for _ in range(3):
            program.forward()
            program.backward()
            program.update(0)
        program.update(1)
    assert program.found == [("optimizer", 1)]
    assert program.steps().step.tolist() == list(range(1, 21))


def test_a_loader_wins_over_accumulated_updates(program: Program) -> None:
    for batch in range(64):
        program.fetch()
        program.forward()
        program.backward()
        if batch % 4 == 3:
            program.update()
    assert program.found == [("loader", 0)]
    assert len(program.steps()) == 64


def test_lbfgs_is_told_by_its_backwards(program: Program) -> None:
    for _ in range(3):
        program.does(step_log.OPTIMIZER_BEGIN)
        for _ in range(20):
            program.forward()
            program.backward()
        program.does(step_log.OPTIMIZER_END)
    assert program.found == [("backward", None)]


def test_of_two_loaders_zipped_the_first_one_begins_the_step(program: Program) -> None:
    for _ in range(40):
        program.fetch(5)
        program.train(1, loader=2)
    assert program.found == [("loader", 5)]
    assert len(program.steps()) == 40


def test_explicit_steps_overrule_all(program: Program) -> None:
    for _ in range(30):
        program.train(2)
        program.does(step_log.EXPLICIT_STEP, 0, 8)
    assert program.found == [("explicit", None)]
    assert program.steps().step.tolist() == list(range(1, 31))


def test_a_program_that_ends_before_it_is_decided_has_steps_all_the_same(program: Program) -> None:
    program.train(5)
    steps = program.steps()
    assert program.found == [("loader", 0)]
    assert len(steps) == 5


def test_slow_steps_are_shown_before_it_is_decided_what_they_are(program: Program) -> None:
    """Ten seconds a micro-batch: nobody waits for 24 of them to see something."""
    for update in range(6):
        for _ in range(8):
            program.forward()
            program.does(step_log.BACKWARD_BEGIN)
            program.does(step_log.BACKWARD_END, ms=10_000)
        program.log.work()
        if update == 0:
            assert program.found == [("backward", None)]
        program.update()
    assert program.found == [("backward", None), ("optimizer", 0)]


def test_a_known_step_is_another_one_where_a_call_never_ended(program: Program) -> None:
    """As it was left by an exception that the program caught: it goes on within a forward."""
    program.train(60, loader=None)
    program.does(step_log.FORWARD_BEGIN, GRAD)
    program.train(60, loader=None)
    program.log.work()
    steps = program.steps()
    assert steps.phases_s[50, layout.FORWARD] == pytest.approx(0.001)
    inside = steps.phases_s[70:110, layout.FORWARD] + steps.phases_s[70:110, layout.BACKWARD]
    assert inside == pytest.approx(steps.total_s[70:110])


def test_slow_steps_of_many_events_are_shown_before_it_is_decided_too(program: Program) -> None:
    """Of so many events a second the first ones are dropped before the patience ends."""
    for _ in range(10):
        program.backward()
        for _ in range(6_000):
            program.does(step_log.LOADER_START_BEGIN, ms=0.1)
            program.does(step_log.LOADER_START_END, ms=0.1)
        program.log.work()
    assert program.found == [("backward", None)]


def test_what_the_user_names_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(monkeypatch, "backward")
    program.train(30)
    assert program.found == [("backward", None)]


def test_evaluation_over_another_loader_is_told_apart(program: Program) -> None:
    for _ in range(3):
        program.train(40)
        for _ in range(10):
            program.fetch(loader=1)
            program.forward(EVAL)
        program.does(step_log.FETCH_BEGIN, 1)
        program.does(step_log.FETCH_END, 1, step_log.EXHAUSTED)
    program.train(40)
    steps = program.steps()
    assert len(steps) == 160
    evaluation = steps.phases_s[:, layout.EVALUATION]
    # Ten batches of four milliseconds, of which the first one begins the phase.
    assert np.flatnonzero(evaluation).tolist() == [39, 79, 119]
    assert np.allclose(evaluation[evaluation > 0], 0.040, atol=0.002)
    assert program.told.count("evaluation") == 3


def test_evaluation_is_told_apart_where_gradients_are_computed_by_hand(program: Program) -> None:
    """Only backward passes and optimizers showed of which loader's batches something is learned."""

    def learn(count: int) -> None:
        for _ in range(count):
            program.fetch()
            program.does(step_log.GRADIENT_BEGIN)
            program.does(step_log.GRADIENT_END)

    for _ in range(3):
        learn(40)
        for _ in range(10):
            program.fetch(loader=1)
        program.does(step_log.FETCH_BEGIN, 1)
        program.does(step_log.FETCH_END, 1, step_log.EXHAUSTED)
    learn(40)
    steps = program.steps()
    assert program.found == [("loader", 0)] and len(steps) == 160
    evaluation = steps.phases_s[:, layout.EVALUATION]
    assert np.flatnonzero(evaluation).tolist() == [39, 79, 119]


def test_loaders_of_a_line_are_the_same_where_they_shuffle_alike() -> None:
    loaders, line = hooks.Loaders(None), {"file": "data.py", "line": 7}
    dataset = torch.arange(4)
    made = [torch.utils.data.DataLoader(dataset, shuffle=x) for x in (True, False, True)]
    train, evaluation, again = (loaders.place_of(loaders.made(x, line)) for x in made)
    assert train == again != evaluation


def test_evaluation_without_a_loader_is_told_by_the_mode(program: Program) -> None:
    program.train(30, loader=None)
    for _ in range(5):
        program.forward(EVAL)
    program.train(30, loader=None)
    evaluation = program.steps().phases_s[:, layout.EVALUATION]
    assert np.flatnonzero(evaluation).tolist() == [30]
    assert 0.008 < evaluation[30] < 0.012


def test_a_known_step_that_begins_within_an_evaluation_ends_it(program: Program) -> None:
    """Its events are those of earlier steps, and the program is elsewhere when it begins."""

    def steps(count: int) -> None:
        for _ in range(count):
            program.forward()
            program.backward()
            program.update()
            program.does(step_log.EXPLICIT_STEP)

    steps(60)
    program.log.work()
    for _ in range(5):
        program.forward(EVAL)
    program.does(step_log.EXPLICIT_STEP)
    steps(60)
    evaluation = program.steps().phases_s[:, layout.EVALUATION]
    assert np.flatnonzero(evaluation).tolist() == [60, 61]
    assert np.allclose(evaluation[60:62], [0.010, 0.001])
    assert program.told == ["evaluation"]


def test_a_checkpoint_and_a_collection_count_once(program: Program) -> None:
    program.train(30)
    program.does(CHECKPOINT_BEGIN)
    program.does(CHECKPOINT_END, ms=50)
    program.fetch()
    program.now += MS
    program.log.forward(0, GRAD)
    program.log.add_at(step_log.GC_BEGIN, 0, program.now)
    program.now += 20 * MS
    program.log.add_at(step_log.GC_END, 0, program.now)
    program.does(step_log.FORWARD_END)
    program.backward()
    program.update()
    program.fetch()
    steps = program.steps()
    assert np.isclose(steps.phases_s[29, layout.CHECKPOINT], 0.05)
    assert np.isclose(steps.phases_s[30, layout.GC], 0.02)
    assert np.isclose(steps.phases_s[30, layout.FORWARD], 0.001)
    assert np.isclose(steps.step_s[30], 0.028)


def test_interruptions_within_each_other_and_of_other_threads_count_once(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collection within a copy took its time out of the forward once more."""
    thread = 1
    monkeypatch.setattr(stepping, "get_ident", lambda: thread)
    program.train(30)
    program.fetch()
    program.now += MS
    program.log.forward(0, GRAD)
    began = program.now
    program.now += 30 * MS
    program.log.add_at(step_log.GC_BEGIN, 0, began + 10 * MS)
    program.log.add_at(step_log.GC_END, 0, began + 18 * MS)
    program.log.add_at(step_log.COPY_BEGIN, 0, began + 5 * MS)
    program.log.add_at(step_log.GC_BEGIN, 0, began + 27 * MS)  # right between begin and end
    program.log.add_at(step_log.GC_END, 0, began + 28 * MS)
    thread = 2
    program.log.add_at(step_log.COPY_BEGIN, 0, began + 29 * MS)
    thread = 1
    program.log.add_at(step_log.COPY_END, 0, began + 30 * MS)
    thread = 2
    program.log.add_at(step_log.COPY_END, 0, began + 30 * MS)
    thread = 1
    program.does(step_log.FORWARD_END)
    program.backward()
    program.update()
    program.fetch()
    steps = program.steps()
    assert np.isclose(steps.phases_s[30, layout.GC], 0.009)
    assert np.isclose(steps.phases_s[30, layout.COPY], 0.025 - 0.009)
    assert np.isclose(steps.phases_s[30, layout.FORWARD], 0.031 - 0.025)
    assert np.isclose(steps.step_s[30], 0.038)


def test_a_later_phase_with_another_loader_is_found(program: Program) -> None:
    program.train(100, loader=0)
    program.train(200, loader=1)
    assert program.found == [("loader", 0), ("loader", 1)]
    # What passed until the old boundary was given up is one long step.
    assert 260 < len(program.steps()) < 300


def test_a_step_keeps_when_the_rank_was_ready(program: Program) -> None:
    for _ in range(30):
        program.fetch()
        program.forward()
        program.does(step_log.BACKWARD_BEGIN)
        program.now += 3 * MS
        ready = program.now
        program.does(step_log.BACKWARD_END, ms=5)
        program.log.exchanged(ready, True)
        program.update()
    steps = program.steps()
    assert np.allclose(steps.entry_ns - steps.start_ns, 7 * MS, rtol=1e-3)
    assert np.allclose(steps.exchanged_ns - steps.entry_ns, 5 * MS, rtol=2e-3)


def test_what_came_before_the_first_step_is_none_of_its_own(program: Program) -> None:
    """Ranks exchange their parameters first: the first one's wait began before the first step."""
    program.forward()
    program.now += MS
    program.log.exchanged(program.now - MS, False)
    program.train(40)
    steps = program.steps()
    assert np.isnan(steps.entry_ns[0])
    for column in ("samples", "elements", "entry"):
        assert steps.rows[column][0] == steps.rows[column][1], column


def test_steps_without_hooks_become_one_row(program: Program) -> None:
    program.train(40)
    program.log.rested(100, program.now)
    program.train(40)
    steps = program.steps()
    (off,) = np.flatnonzero(steps.has(layout.PROBE_OFF))
    assert steps.steps[off] == 100 and not steps.plain[off]
    assert np.isclose(steps.phases_s[off].sum(), steps.phases_s[off, layout.OTHER])
    assert steps.step[-1] == 39 + 100 + 40


def test_an_evaluation_after_steps_without_hooks_is_no_part_of_them(program: Program) -> None:
    program.train(40)
    program.fetch()
    program.now += 600 * MS
    program.log.rested(6, program.now, at_loader=True)
    program.evaluate()
    program.does(step_log.FETCH_BEGIN, 1)
    program.does(step_log.FETCH_END, 1, step_log.EXHAUSTED)
    program.train(40)
    steps = program.steps()
    (off,) = np.flatnonzero(steps.has(layout.PROBE_OFF))
    assert steps.steps[off] == 6 and np.isclose(steps.total_s[off], 0.6, atol=0.005)
    assert np.flatnonzero(steps.phases_s[:, layout.EVALUATION]).tolist() == [off + 1]
    assert steps.step[-1] == 40 + 6 + 40


def test_far_steps_share_rows_and_slow_ones_keep_theirs(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_rows, "THINNED_FROM", 100)
    monkeypatch.setattr(step_rows, "STEPS_PER_DETAIL", 10)
    program.train(300)
    program.fetch(ms=500)
    program.train(300)
    steps = program.steps()
    assert (steps.steps[:100] == 1).all()
    assert 10 < steps.steps[110:-1].mean() < 60
    assert int(steps.steps.sum()) == steps.step[-1] == 600
    (slow,) = np.flatnonzero(steps.has(layout.SLOW_STEP))
    assert steps.steps[slow] == 1 and steps.step_s[slow] > 0.5
    ends_ns = steps.start_ns + (steps.total_s * 1e9).astype(int)
    assert np.abs(steps.start_ns[1:] - ends_ns[:-1]).max() < 20_000  # phases are of 24 bits


def taken_singly(program: Program, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The events from here on that are taken in one by one."""
    events: list[tuple[int, ...]] = []
    take = program.log._take
    monkeypatch.setattr(program.log, "_take", lambda *event: events.append(event) or take(*event))
    return events


def test_steps_with_known_events_are_taken_in_at_once_and_alike(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Evaluations, collections and new shapes between make no step like another one."""
    program.train(40)
    program.log.work()
    taken = taken_singly(program, monkeypatch)
    program.train(100)
    program.log.work()
    assert len(taken) < 30  # of 800 events: the first steps show how such a step is
    for mark in (program.step_with_a_collection, program.evaluate, program.new_shape):
        program.train(3)
        mark()
    program.train(20)
    steps = program.steps()
    assert steps.step.tolist() == list(range(1, 172))
    assert np.allclose(np.diff(steps.start_ns)[:142], 8 * MS)
    usual = steps.phases_s[140]
    for number in (50, 100, 139, 160):
        assert np.allclose(steps.phases_s[number], usual)
    assert np.allclose(steps.samples, 32)
    assert np.allclose(steps.rows["elements"], 96)
    assert np.flatnonzero(steps.phases_s[:, layout.GC]).tolist() == [143]
    assert np.flatnonzero(steps.phases_s[:, layout.EVALUATION]).tolist() == [146]
    assert np.flatnonzero(steps.has(layout.NEW_INPUT)).tolist() == [150]


def test_an_input_of_more_elements_than_a_row_holds_is_one_of_the_most(program: Program) -> None:
    """An expanded tensor: three such inputs, and the watch removed itself as if it had failed."""
    rows = 1 << 41
    for _ in range(40):
        program.fetch()
        program.now += MS
        program.log.forward(0, GRAD, 3 * rows, rows)
        program.does(step_log.FORWARD_END)
        program.backward()
        program.update()
    steps = program.steps()
    assert len(steps) == 40
    assert np.allclose(steps.rows["elements"], event_rows.MOST_ELEMENTS)


def test_steps_of_which_only_batches_are_seen_are_known_too(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All batches so far were kept and copied in each step, as no forward took them."""
    taken = taken_singly(program, monkeypatch)
    for _ in range(3_000):
        program.fetch()
        program.does(step_log.EXPLICIT_STEP)
    assert program.steps().step[-1] == 3_000
    assert len(taken) < 2_000, "of 9,000, until it is decided and known"


def test_steps_of_several_batches_of_one_loader_are_known_too(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second batch was looked at as if it began a step, so that none was known."""
    taken = taken_singly(program, monkeypatch)
    for _ in range(1_000):
        program.fetch()
        program.train(1)
    steps = program.steps()
    assert steps.step[-1] == 1_000 and np.allclose(steps.samples, 64)
    assert len(taken) < 3_000, "of 10,000, until it is decided and known"


def test_no_thread_ends_a_rest_while_another_takes_events_in(program: Program) -> None:
    program.train(40)
    program.log.work()
    rest = Thread(target=program.log.rested, args=(100, program.now))
    with program.log._working:
        rest.start()
        rest.join(0.2)
        assert rest.is_alive()
    rest.join()
    program.train(40)
    assert program.steps().step[-1] == 40 + 99 + 40


def test_a_row_lasts_no_longer_than_a_kill_may_cost(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_rows, "THINNED_FROM", 0)
    monkeypatch.setattr(step_rows, "STEPS_PER_DETAIL", 1e-9)
    program.train(5000)
    assert program.steps().total_s[:-1].max() < 8.1


def test_brief_calls_share_rows_and_none_is_lost(program: Program) -> None:
    """Of 100,000 calls a second most had no row, as more came than the disk was given."""
    five_us = 0.005
    for call in range(50_000):
        program.does(step_log.FORWARD_BEGIN, 0, 1 << event_rows.ROWS_BITS | 7, ms=five_us)
        program.does(step_log.FORWARD_END, ms=five_us if call % 10_000 != 9_999 else 40)
        if call == 5_000:
            assert program.log.infer()
    found = program.steps()
    assert found.steps.sum() == found.step[-1] == 50_000
    assert len(found) < 1_000 and found.steps.max() > 90
    slow = found.total_s > 0.02
    assert found.steps[slow].tolist() == [1] * 5 and np.allclose(found.step_s[~slow], 1e-5)
    assert np.allclose(found.samples, 7)
    assert found.median_s() == pytest.approx(1e-5)
    assert found.lost() == (0, 0.0)


def test_a_row_holds_the_number_of_its_steps_with_a_block_as_the_last_one() -> None:
    most = step_rows._MOST_IN_ROW - 1 + resting.MOST_STEPS
    assert most <= np.iinfo(dict(layout.STEP_COLUMNS)["steps"]).max


def test_steps_share_a_row_while_the_disk_takes_none(program: Program) -> None:
    program.train(40)
    program.log.work()
    rows = len(program.rows)
    program.log.has_room = lambda: False
    program.train(30)
    program.log.rested(100, program.now)
    program.train(30)
    program.log.work()
    assert len(program.rows) == rows
    program.log.has_room = lambda: True
    program.train(30)
    found = program.steps()
    assert found.steps.sum() == found.step[-1] == 39 + 30 + 100 + 30 + 30
    (shared,) = np.flatnonzero(found.steps > 1)
    counted, seconds = program.log.totals
    assert counted == found.steps.sum() - 100
    assert np.isclose(sum(seconds), 0.008 * counted, atol=0.002)
    # Steps with hooks are among them: no block without, and none to compare.
    assert not found.plain[shared] and not found.has(layout.PROBE_OFF).any()
    assert np.allclose(np.delete(found.step_s, shared)[:-1], 0.008)
    ends_ns = found.start_ns + (found.total_s * 1e9).astype(int)
    assert np.abs(found.start_ns[1:] - ends_ns[:-1]).max() < 200_000  # phases are of 24 bits
