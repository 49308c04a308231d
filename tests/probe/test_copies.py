"""Copies to a device: how each was asked for, and that they end no phase."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from torchdoctor.probe import step_log
from torchdoctor.probe.hooks import copy_hooks


class Tensor:
    """A tensor on the host, pinned or not; `to` and `cuda` give one on a device."""

    def __init__(self, pinned: bool, device: str = "cpu") -> None:
        self._pinned, self.device = pinned, SimpleNamespace(type=device)

    def to(self, *args: Any, **kwargs: Any) -> Tensor:
        return type(self)(False, "cuda")

    def cuda(self, *args: Any, **kwargs: Any) -> Tensor:
        return type(self)(False, "cuda")

    def is_pinned(self) -> bool:
        return self._pinned

    def numel(self) -> int:
        return 6

    def element_size(self) -> int:
        return 4


@pytest.fixture
def tensors(tmp_path: Any) -> Any:
    """The class with the hooks in it, and the log that they write to."""

    class Hooked(Tensor):
        pass

    Hooked.to, Hooked.cuda = Tensor.to, Tensor.cuda  # type: ignore[method-assign]
    log = step_log.EventLog(str(tmp_path), 1, lambda: None)
    compiler = SimpleNamespace(is_dynamo_compiling=lambda: False)
    torch = SimpleNamespace(Tensor=Hooked, compiler=compiler)
    accelerator = SimpleNamespace(built=True, type="cuda")
    session = SimpleNamespace(
        on=True, torch=torch, accelerator=accelerator, log=log, guarded=lambda function: function
    )
    copy_hooks.install(session)
    return Hooked, log


def copies(log: Any) -> list[int]:
    rows = np.frombuffer(log._rows.tobytes(), dtype="<i8").reshape(-1, 4)
    assert set(rows[rows[:, 0] == step_log.COPY_END, 3]) == {24}
    return [int(ident) for ident in rows[rows[:, 0] == step_log.COPY_BEGIN, 1]]


def test_a_copy_from_pinned_memory_that_waits_is_told_from_others(tensors: Any) -> None:
    """It was logged as one from pageable memory: pinning was advised to loaders that pin."""
    cls, log = tensors
    cls(True).to("cuda")
    cls(True).to("cuda", non_blocking=True)
    cls(True).cuda(0, True)
    cls(False).to("cuda")
    cls(False).cuda(non_blocking=True)
    assert copies(log) == [1, 3, 3, 0, 2]


def test_what_follows_a_copy_is_in_the_phase_that_it_was_made_in(tensors: Any) -> None:
    """Stack samples after it counted as "other": preparing a batch was no work of the loop's."""
    cls, log = tensors
    log.add(step_log.FETCH_END)
    cls(True).to("cuda")
    assert log.last_code == step_log.FETCH_END
