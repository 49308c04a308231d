"""Whether a trial was measured on a busy machine."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import pytest
from simulated_program import Simulated, engine_of

from torchdoctor.launch.launch_spec import LaunchSpec
from torchdoctor.machine.load_beside import Held
from torchdoctor.queries.hardware import MUCH_LOAD
from torchdoctor.trials.arms import Arm
from torchdoctor.trials.log import Budget, Log


class Beside:
    """What others held during each measurement, made up."""

    usable = 2.0

    def __init__(self, *held: float | None) -> None:
        self._held = list(held)

    @contextmanager
    def measuring(self) -> Any:
        held = Held()
        yield held
        held.seconds, held.held = 10.0, self._held.pop(0)


@pytest.mark.parametrize(
    ("held", "busy"),
    [
        ((0.1,), False),
        ((2 * MUCH_LOAD + 0.01,), True),
        ((1.9, 1.9, 0.0), True),
        ((1.9, 0.0, 0.0), False),
        ((None,), False),
    ],
)
def test_a_trial_tells_what_it_was_measured_beside(
    held: tuple[float | None, ...], busy: bool
) -> None:
    others: Any = Beside(*held)
    log = Log(engine_of(Simulated({})), Budget(None), None, others)
    arm = Arm(key="candidate-0", spec=LaunchSpec(name="amp"))
    for _ in held:
        with log._measuring("confirm", "a pair", arm):
            pass
    assert arm.on_busy_machine is busy
