"""What an observing launch showed of a small program whose steps take 0.1 s."""

from __future__ import annotations

from types import SimpleNamespace

from torchdoctor.observe.observation import Observation
from torchdoctor.schema import Boundary, ProcessFacts, SensorStatistics, StepStatistics

STEPS = StepStatistics(
    boundary=Boundary(kind="optimizer"), steps=100, warmup_steps=10, median_s=0.1,
    mean_s=0.1, p10_s=0.1, p90_s=0.1, samples_per_step=4.0,
)  # fmt: skip
SEEN = Observation(
    steps_found=SimpleNamespace(boundary=STEPS.boundary),  # type: ignore[arg-type]
    steps=STEPS, processes=[ProcessFacts(pid=1)], sensors=SensorStatistics(), wall_s=9.0,
    start_s=2.0,
)  # fmt: skip
