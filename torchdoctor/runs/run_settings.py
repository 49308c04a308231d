"""What the user asked for on the command line of `run`."""

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from torchdoctor.advice import catalogue
from torchdoctor.observe.observation import Observation
from torchdoctor.observe.step_finding import STEP_KINDS
from torchdoctor.schema import Evidence, Workload
from torchdoctor.schema.errors import UsageError
from torchdoctor.schema.specs import FixSpec

if TYPE_CHECKING:
    from torchdoctor.clusters.cluster import Cluster


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What the user asked for on the command line of `run`."""

    budget_s: float = 300.0
    began_s: float | None = None  # when its time began, of `time.monotonic()`; None: with the run
    timeout_s: float = 600.0
    output: Path | None = None
    made_folder: Path | None = None  # for this run already, by who detached it
    # Gives what a watched run shows, with what a short or a whole observation adds.
    earlier: Callable[[Workload, Callable[..., Observation]], Observation] | None = None
    steps: int | None = None
    warmup: int | None = None
    fixes: list[str] | None = None
    skip: list[str] = field(default_factory=list)
    no_fixes: bool = False
    allow_training_changes: bool = False
    allow_output_changes: bool = False
    step_on: str | None = None
    seed: int = 0
    sandbox: bool = True
    network: bool = True  # whether launches may use it
    side_by_side: bool = True
    cold: bool = False
    steps_total: int | None = None  # of the whole training, and what an hour of it costs
    cost_per_hour: float | None = None
    remarks: Sequence[Evidence] = ()  # of the job that it runs in
    cluster: "Cluster | None" = None  # whose nodes measure pairs

    def options(self) -> list[str]:
        """Return the command line's options that give these settings."""
        words = ["--budget", f"{self.budget_s:g}s"]
        for name, value in (
            ("--fixes", ",".join(self.fixes or [])),
            ("--skip", ",".join(self.skip)),
            ("--steps", self.steps),
            ("--warmup", self.warmup),
            ("--step-on", self.step_on),
            ("--seed", self.seed or None),
            ("--steps-total", self.steps_total),
            ("--cost-per-hour", self.cost_per_hour),
        ):
            if value not in (None, ""):
                words += [name, str(value)]
        switches = {
            "--no-fixes": self.no_fixes,
            "--allow-training-changes": self.allow_training_changes,
            "--allow-output-changes": self.allow_output_changes,
            "--no-sandbox": not self.sandbox,
            "--no-fork": self.cold,
            "--sequential": not self.side_by_side,
        }
        words += [option for option, is_on in switches.items() if is_on]
        if not self.network:
            words += ["--network", "off"]
        return words

    def wanted(self) -> dict[str, FixSpec]:
        """Return the fixes that --fixes and --skip leave, by id."""
        return {
            ident: fix
            for ident, fix in catalogue.fixes().items()
            if (self.fixes is None or ident in self.fixes) and ident not in self.skip
        }

    def check(self) -> None:
        """UsageError for a fix or a kind of step that does not exist."""
        all_fixes = catalogue.fixes()
        for ident in [*(self.fixes or []), *self.skip]:
            if ident not in all_fixes:
                alike = difflib.get_close_matches(ident, all_fixes, n=1)
                meant = f" Did you mean {alike[0]}?" if alike else ""
                raise UsageError(
                    f"'{ident}' is not a fix: torchdoctor explain --all lists all fixes.{meant}"
                )
        if self.cost_per_hour is not None and self.steps_total is None:
            raise UsageError("--cost-per-hour needs --steps-total, the training's length.")
        if self.step_on is not None and self.step_on not in STEP_KINDS:
            raise UsageError(f"--step-on takes one of {', '.join(STEP_KINDS)}.")
