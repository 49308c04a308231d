"""A little generator of event sequences: a clock, and the calls that a training script makes."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from torchdoctor.observe.events import Events, from_rows
from torchdoctor.probe import step_log

if TYPE_CHECKING:
    from collections.abc import Iterator

MS = 1_000_000


class Script:
    """Writes events while its clock is moved on; every duration in milliseconds."""

    def __init__(self, start_ms: float = 1000.0) -> None:
        self.rows: list[tuple[int, int, int, int]] = []
        self.now = int(start_ms * MS)
        self.backwards = 0
        self._iterators: dict[int, int] = {}

    def pause(self, ms: float) -> None:
        self.now += int(ms * MS)

    def log(self, code: int, ident: int = 0, value: int = 0) -> None:
        self.rows.append((code, ident, self.now, value))

    @contextmanager
    def bracket(self, begin: int, ident: int = 0, value: int = 0, end_value: int = 0) -> Iterator:
        self.log(begin, ident, value)
        yield
        self.log(begin + 1, ident, end_value)

    def start_loader(self, loader: int = 0, ms: float = 0.0) -> None:
        ordinal = self._iterators.get(loader, -1) + 1
        self._iterators[loader] = ordinal
        with self.bracket(step_log.LOADER_START_BEGIN, loader | (ordinal << 20)):
            self.pause(ms)

    def fetch(self, loader: int = 0, ms: float = 1.0, samples: int = 8) -> None:
        ident = loader | (self._iterators.get(loader, 0) << 20)
        with self.bracket(step_log.FETCH_BEGIN, ident, end_value=samples):
            self.pause(ms)

    def exhaust(self, loader: int = 0, ms: float = 0.1) -> None:
        self.fetch(loader, ms, samples=-1)

    def forward(
        self, ms: float = 2.0, model: int = 0, grad: bool = True, train: bool = True
    ) -> None:
        value = int(grad) | (int(train) << 1)
        with self.bracket(step_log.FORWARD_BEGIN, model, value, value):
            self.pause(ms)

    def backward(self, ms: float = 3.0) -> None:
        with self.bracket(step_log.BACKWARD_BEGIN, end_value=self.backwards):
            self.pause(ms)
        self.backwards += 1

    def optimizer(self, ms: float = 1.0, ident: int = 0) -> None:
        with self.bracket(step_log.OPTIMIZER_BEGIN, ident):
            self.pause(ms)

    def train_step(self, fetch_ms: float = 1.0, loader: int = 0) -> None:
        """One batch: `fetch_ms` wait, 2 ms forward, 3 ms backward, 1 ms step, 1 ms of the rest."""
        self.fetch(loader, fetch_ms)
        self.forward()
        self.backward()
        self.optimizer()
        self.pause(1.0)

    def events(self) -> Events:
        return from_rows(np.array(self.rows, dtype=np.int64).reshape(-1, 4))
