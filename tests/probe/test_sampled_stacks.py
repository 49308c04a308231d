"""How stacks are read while their thread may run on, and calls timed beside other programs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from torchdoctor.probe import stacks
from torchdoctor.probe.tensor_calls import TensorCalls


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
