"""float32 in place of float16 on a CPU, and back: for what was float16 alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchdoctor.fixes import float32_on_cpu


class Program:
    """What a fix registers, to be called by the test."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.convert: Callable[[Any], None]
        self.undo: Callable[[Any], None]

    def optimizers(self) -> list[torch.optim.Optimizer]:
        return [self.optimizer]

    def on_model(self, convert: Callable[[Any], None], undo: Callable[[Any], None]) -> None:
        self.convert = convert
        self.undo = undo

    def at(self, *_: object) -> None:
        """Leave the arguments of calls as they are."""

    def set_reason(self, fact: str) -> None:
        """Take no note of it."""

    def applied(self) -> None:
        """Take no note of it."""


def test_what_was_float32_before_stays_so_when_it_is_taken_back() -> None:
    """A norm that is kept in float32 in a float16 model: the program would go on with another."""
    net = torch.nn.Sequential(torch.nn.Linear(4, 4).half(), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()

    def types() -> list[torch.dtype]:
        tensors = [*net.parameters(), *net.buffers(), *(p.grad for p in net.parameters())]
        tensors += [optimizer.state[p]["momentum_buffer"] for p in net.parameters()]
        return [x.dtype for x in tensors if x is not None and x.is_floating_point()]

    before = types()
    assert set(before) == {torch.float16, torch.float32}
    program = Program(optimizer)
    float32_on_cpu.apply(torch, {}, program)
    program.convert(net)
    assert set(types()) == {torch.float32}
    program.undo(net)
    assert types() == before
