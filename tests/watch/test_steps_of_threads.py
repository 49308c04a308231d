"""Which thread's events make steps, where more than one of them trains or calls a model."""

import numpy as np
import pytest
from test_stepping import EVAL, MS, Program

from torchdoctor.probe import step_log
from torchdoctor.watch.inside import layout, stepping


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Program:
    return Program(monkeypatch)


@pytest.fixture
def thread(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of the thread in which the program's next event happens."""
    current = [1]
    monkeypatch.setattr(stepping, "get_ident", lambda: current[0])
    return current


def calls(program: Program, count: int) -> None:
    for _ in range(count):
        program.forward(EVAL)


def infers(program: Program) -> None:
    calls(program, 40)
    assert program.log.infer()


def calls_in_turns(program: Program, thread: list[int], count: int) -> None:
    for call in range(count):
        thread[0] = 1 + call % 2
        program.forward(EVAL)


def test_calls_that_move_to_another_thread_are_steps_all_the_same(
    program: Program, thread: list[int]
) -> None:
    """The main thread warms the model up, a worker does the work."""
    infers(program)
    program.log.work()
    thread[0] = 2
    calls(program, 400)
    assert 40 + 396 <= program.steps().steps.sum() <= 440  # a few show that the thread is another


def test_a_few_calls_of_another_thread_tell_nothing(program: Program, thread: list[int]) -> None:
    infers(program)
    for _ in range(20):
        calls(program, 1)
        thread[0] = 2
        calls(program, 1)
        program.log.work()  # half of the calls that came since the last look
        thread[0] = 1
        calls(program, 99)
        program.log.work()
    assert program.log.overlapping.calls == 0  # one thread's calls are followed
    assert program.steps().steps.sum() == 40 + 20 * 100


def test_of_calls_that_came_before_the_decision_the_busiest_threads_are_steps(
    program: Program, thread: list[int]
) -> None:
    calls(program, 3)
    thread[0] = 2
    calls(program, 50)
    assert program.log.infer()
    calls(program, 50)
    assert program.steps().steps.sum() == 100


def test_what_happens_between_steps_happens_in_the_thread_of_the_steps(
    program: Program, thread: list[int]
) -> None:
    """A profiler that one thread starts cannot be stopped by another one."""
    seen = []
    program.log.at_boundary.append(lambda now, step: seen.append((thread[0], step)))
    program.train(40)
    program.log.work()
    for _ in range(100):
        program.does(step_log.FETCH_BEGIN)
        thread[0] = 2  # which takes in what came, and then an event of its own
        program.log.work()
        program.does(step_log.LOADER_START_END)
        thread[0] = 1
        program.log.work()
        program.does(step_log.FETCH_END)
        program.train(1, loader=None)
        program.fetch()
        program.log.work()
        program.train(1, loader=None)
        program.does(step_log.FETCH_BEGIN)
        program.log.work()
        program.does(step_log.FETCH_END)
        program.train(1, loader=None)
    assert {by for by, _ in seen} == {1}
    steps = [step for _, step in seen]
    assert steps == sorted(set(steps)) and len(steps) > 90  # no boundary is told twice


def test_no_moment_is_between_two_calls_of_several_threads(
    program: Program, thread: list[int]
) -> None:
    seen = []
    program.log.at_boundary.append(lambda now, step: seen.append(step))
    calls_in_turns(program, thread, 40)
    assert program.log.infer()
    calls_in_turns(program, thread, 1000)
    program.log.work()
    assert program.log.step > 1000 and not seen


def test_a_training_that_moves_to_another_thread_is_followed(
    program: Program, thread: list[int]
) -> None:
    """The first epoch in the main thread, later ones in a worker: the report ended with it."""
    program.train(50)
    program.log.work()
    thread[0] = 2
    program.train(500)
    thread[0] = 3
    program.train(20)
    steps = program.steps()
    assert 50 + 499 + 19 <= steps.steps.sum() <= 570  # one batch is fetched before it is known
    assert {place for _, place in program.found} == {0}
    starts = steps.start_ns
    ends = starts + (steps.total_s * 1e9).astype(int)
    assert (starts[1:] - ends[:-1] > -20_000).all(), "no moment is in two steps"


def test_a_training_after_calls_in_another_thread_is_followed(
    program: Program, thread: list[int]
) -> None:
    infers(program)
    program.log.work()
    thread[0] = 2
    for _ in range(40):
        program.backward()
        program.update()
    program.steps()
    assert program.found == [("forward", 0), ("optimizer", 0)] and not program.log.infers


def test_of_threads_that_train_at_once_the_first_one_is_followed(
    program: Program, thread: list[int]
) -> None:
    program.train(40)
    program.log.work()
    for round_ in range(200):
        thread[0] = 1
        program.train(1)
        for number in range(2, 40):
            thread[0] = number
            program.train(2 if round_ % 3 else 4, loader=number)
        if round_ % 20 == 19:
            program.log.work()
    thread[0] = 1
    program.train(1)
    assert program.found == [("loader", 0)]
    assert program.steps().steps.sum() == 241


def test_what_another_thread_computes_again_within_a_backward_is_a_part_of_it(
    program: Program, thread: list[int]
) -> None:
    """Checkpointing on a GPU: its passes are those of the thread that autograd has for it."""
    for _ in range(100):
        program.fetch()
        program.forward()
        program.does(step_log.BACKWARD_BEGIN)
        program.log.work()
        thread[0] = 2
        for _ in range(150):
            program.backward()
        program.log.work()
        thread[0] = 1
        program.does(step_log.BACKWARD_END)
        program.update()
        program.log.work()
    assert program.found == [("loader", 0)]
    assert program.steps().steps.sum() == 100


def test_a_training_after_calls_of_several_threads_is_whole(
    program: Program, thread: list[int]
) -> None:
    calls_in_turns(program, thread, 40)
    assert program.log.infer()
    program.log.work()
    thread[0] = 1
    for _ in range(40):
        program.backward()
        program.update()
    steps = program.steps()
    assert program.found == [("forward", 0), ("optimizer", 0)]
    assert np.isclose(steps.phases_s[:, layout.BACKWARD].sum(), 40 * MS / 1e9)
    assert np.isclose(steps.phases_s[:, layout.OPTIMIZER].sum(), 40 * MS / 1e9)
