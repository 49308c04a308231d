"""What the user asked of a gate."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class GateSettings:
    """What the user asked for. `tolerances`: accepted growth by metric, as shares."""

    tolerances: dict[str, float]
    budget_s: float = 600.0
    timeout_s: float = 600.0
    output: Path | None = None
    steps: int | None = None
    warmup: int | None = None
    step_on: str | None = None
    seed: int = 0
    sandbox: bool = True
    side_by_side: bool = True
