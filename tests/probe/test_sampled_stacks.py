"""How stacks are read while their thread may run on, and calls timed beside other programs."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from probed import run_probed

import torchdoctor
from torchdoctor.probe import stacks, step_log
from torchdoctor.probe.hooks.tensor_calls import TensorCalls


def test_a_threads_stack_is_read_as_a_whole() -> None:
    """Frame by frame, with the thread running on in between, it has crashed CPython 3.11."""
    told, end = threading.Event(), threading.Event()

    def innermost() -> None:
        told.set()
        end.wait()

    def generate() -> Iterator[int]:
        innermost()
        yield 1

    thread = threading.Thread(target=lambda: list(generate()))
    thread.start()
    assert told.wait(20)
    try:
        names = [one.f_code.co_name for one in stacks.stack_of(thread.ident)]
    finally:
        end.set()
        thread.join()
    assert names[names.index("innermost") :][:3] == ["innermost", "generate", "<lambda>"]
    assert names[-1] == "_bootstrap"
    assert stacks.stack_of(-1) == []


def test_a_program_that_goes_on_while_it_is_looked_at_is_no_sample(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The end of a backward was marked and had no code yet: what came next was the backward."""
    log = SimpleNamespace(mark=(2, 0), last_code=step_log.BACKWARD_BEGIN)
    sampler = stacks.Stacks.__new__(stacks.Stacks)
    session = SimpleNamespace(log=log, learned=True, forward_lines={})
    vars(sampler).update(_session=session, _counts=Counter(), _growth=None, _main=0)
    names: dict[str, Any] = {}
    exec(compile("import sys; frame = sys._getframe()", "/home/me/train.py", "exec"), names)

    def stays(thread: int) -> list[Any]:
        return [names["frame"]]

    def goes_on(thread: int) -> list[Any]:
        log.last_code = step_log.BACKWARD_END
        return [names["frame"]]

    for look in (stays, goes_on):
        monkeypatch.setattr(stacks, "stack_of", look)
        sampler._sample()
    assert sum(sampler._counts.values()) == 1


# Frames of many sizes, so that what lies in the stack's reused memory is no frame, and callbacks of
# the garbage collector that let go of the GIL, as freeing a tensor does.
RUNS_ON = """
import gc, random, sys, threading, time
from torchdoctor.probe import stacks

sys.setswitchinterval(1e-5)
gc.set_threshold(5)
main, over = threading.main_thread().ident, threading.Event()

def sample():
    own = threading.get_ident()
    gc.callbacks.append(lambda *_: time.sleep(0) if threading.get_ident() == own else None)
    while not over.is_set():
        assert stacks.stack_of(main)

functions = []
for locals_ in range(2, 40):
    names, values = ", ".join(f"a{i}" for i in range(locals_)), (1.5,) * locals_
    made = {}
    exec(f"def f(n):\\n {names} = {values}\\n return random.choice(functions)(n - 1) if n else 0",
         globals(), made)
    functions.append(made["f"])
thread = threading.Thread(target=sample)
thread.start()
end = time.monotonic() + 4
while time.monotonic() < end:
    for depth in (2, 30, 5, 60, 1, 12):
        random.choice(functions)(depth)
over.set()
thread.join()
assert gc.isenabled()
"""


def test_a_program_that_collects_garbage_survives_being_looked_at(tmp_path: Path) -> None:
    """CPython before 3.12 collects while it makes frame objects, and lets the thread run on."""
    (tmp_path / "train.py").write_text(RUNS_ON)
    environment = {**os.environ, "PYTHONPATH": str(Path(torchdoctor.__file__).parent.parent)}
    ran = subprocess.run(
        [sys.executable, "train.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ran.returncode == 0, (ran.returncode, ran.stderr)


def test_a_call_that_was_interrupted_takes_no_longer_than_others() -> None:
    """256 copies of 6 us, two of them interrupted, were 9.7 ms of a step of 3.6 ms."""
    calls = TensorCalls(SimpleNamespace(torch=None))
    calls.steps = 1
    where = {"file": __file__, "line": 1}
    for took_ns in [6_000] * 254 + [4_000_000] * 2:
        calls._add("array-copy", "tensor", where, 96, took_ns, True)
    for took_ns in (900_000, 1_100_000):  # of another size: as dear as they are
        calls._add("array-copy", "tensor", where, 4_000_000, took_ns, True)
    (row,) = calls.facts()["tensor_calls"]
    assert row["calls_per_step"] == 258
    assert row["host_s"] == pytest.approx(256 * 6e-6 + 2e-3, rel=0.05)


def test_a_process_forked_while_a_stack_is_read_collects_its_garbage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A loader's worker forked in that moment would have kept its garbage to its end."""
    monkeypatch.setattr(stacks, "_paused", [True])
    gc.disable()
    try:
        stacks._collect_again()
        assert gc.isenabled() and stacks._paused == [False]
    finally:
        gc.enable()


CALLS = """
import time, torch
model = torch.nn.Linear(4, 1)

def prepare():
    end = time.perf_counter() + 0.02
    while time.perf_counter() < end: pass
    return torch.ones(8, 4)

with torch.no_grad():
    for _ in range(60): model(prepare())
"""
TRAINS = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(20):
    model(torch.ones(8, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.02)
"""


@pytest.mark.slow
def test_calls_are_sampled_before_it_is_sure_that_the_program_infers(tmp_path: Path) -> None:
    """Of fast calls three seconds were enough to observe, and no sample was taken in them."""
    (tmp_path / "infer.py").write_text(CALLS)
    run = run_probed(["infer.py"], tmp_path, tmp_path, forked=True, sample_stacks=True)
    assert "prepare" in {row["location"]["function"] for row in run.main["stacks"]}


@pytest.mark.slow
def test_an_evaluation_before_a_training_is_not_among_its_samples(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(CALLS + TRAINS)
    run = run_probed(["train.py"], tmp_path, tmp_path, forked=True, sample_stacks=True)
    assert "prepare" not in {row["location"]["function"] for row in run.main["stacks"]}
