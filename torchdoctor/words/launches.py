"""What launches that were timed showed: samples of a trial."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torchdoctor.words.program import AppliedFix


@dataclass(frozen=True, kw_only=True)
class ProgramFailure:
    """How the observed, untouched program failed by itself after enough steps were seen."""

    exit_code: int  #: The program's own; negative: killed by that signal.
    steps: int  #: Whole training steps seen before.
    output_tail: str = ""  #: The last that it printed, its own traceback included.


@dataclass(frozen=True, kw_only=True)
class LaunchTiming:
    """One timed launch: one sample of a trial. Lists are per iteration of the measured window.

    `ended`: "measured" (the window is whole), "program-ended" (fewer steps than asked for, still
    usable), "failed", "timed-out", "out-of-memory", "interrupted".
    """

    ended: str
    reason: str | None = None  # one sentence where `ended` says that it failed
    step_s: list[float] = field(default_factory=list)
    samples: float | None = None  # in the whole window; None: batches have no size
    window_s: float = 0.0  # sum of step_s, ended by a device synchronisation
    losses: list[float | None] = field(default_factory=list)  # at every backward since the start
    fingerprints: list[str] = field(default_factory=list)  # per sample of the first batches
    peak_memory_bytes: int | None = None  # process tree; GPU peak where it trained on one
    gpu_memory: bool = False  # peak_memory_bytes is of the GPU
    fixes: list[AppliedFix] = field(default_factory=list)
    setup_s: float | None = None  # time to the end of warm-up (start-up, compilation)
    wall_s: float = 0.0
    seeded_by_program: bool = False
    # Since the start, those that were not measured too; None: the warm-up's and the window's.
    iterations: int | None = None


@dataclass(frozen=True, kw_only=True)
class Block:
    """Iterations of a switching launch with one arm on; what followed the switch is discarded."""

    arm: int  # 0: the untouched program, else 1 for the first arm
    round: int
    began_s: float  # on the launch's own clock
    ended_s: float
    timing: LaunchTiming  # of these iterations; without losses, memory or fixes


@dataclass(frozen=True, kw_only=True)
class TurnsTaken:
    """One of two launches side by side. `blocks`: in order; `round` numbers the turns from 1.

    stopped: it was ended from outside, so that how it ended says nothing about it.
    late: it had the turn, which did not end.
    """

    timing: LaunchTiming
    blocks: list[Block] = field(default_factory=list)
    stopped: bool = False
    late: bool = False

    @property
    def counted(self) -> LaunchTiming:
        """Return its blocks as a measured launch, whatever became of the program after them."""
        if not self.blocks or self.timing.ended == "interrupted":
            return self.timing
        return replace(self.timing, ended="measured", reason=None)

    @property
    def went(self) -> int:
        """Return the iterations since the start."""
        return self.timing.iterations or 0

    def broke_down(self, others_went: int) -> bool:
        """Return True if it failed or stood still after its first block while another went on."""
        broken = self.late or (not self.stopped and self.timing.ended == "failed")
        return bool(self.blocks) and broken and others_went > self.went


@dataclass(frozen=True, kw_only=True)
class SwitchedLaunch:
    """One launch in which fixes were switched on and off. `ended`, `reason` as in LaunchTiming."""

    ended: str
    reason: str | None = None
    blocks: list[Block] = field(default_factory=list)  # in the order they ran
    arms: list[list[AppliedFix]] = field(default_factory=list)  # what became of each arm's fixes
    # The arm that was on (0: none) when the program failed or was stuck; None: it was not.
    failed_in: int | None = None
    wall_s: float = 0.0
