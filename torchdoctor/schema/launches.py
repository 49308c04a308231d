"""The currency of measurement: blocks of steps, the launches they belong to, and pairs of these."""

from dataclasses import dataclass, field, replace

from torchdoctor.schema.evidence import Evidence
from torchdoctor.schema.program import AppliedFix


@dataclass(frozen=True, kw_only=True)
class ProgramFailure:
    """How the observed, untouched program failed by itself after enough steps were seen."""

    exit_code: int  #: The program's own; negative: killed by that signal.
    steps: int  #: Whole training steps seen before.
    output_tail: str = ""  #: The last that it printed, its own traceback included.
    #: What its end may have to do with: files that it changed, memory, or a limit of ours.
    besides: list[Evidence] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """Hashes of a sample."""

    input: str
    label: str | None = None  # None: the batch has no second tensor of whole numbers


@dataclass(frozen=True, kw_only=True)
class Block:
    """Iterations of one launch with one arm switched on, between two waits for the device."""

    step_s: list[float]
    window_s: float = 0.0  # sum of step_s, ended by a device synchronisation
    samples: float | None = None  # of all these iterations; None: batches have no size
    arm: int = 0  # in a launch that switches fixes: 0 the untouched program, 1 the first arm
    round: int = 0  # of the turn, or within the launch
    began_s: float = 0.0  # this and the next on the system's monotonic clock
    ended_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class LaunchTiming:
    """One timed launch: one sample of a trial. Lists are per iteration of what was measured.

    `ended`: "measured" (all that was asked for), "program-ended" (fewer steps than asked for, still
    usable), "failed", "timed-out", "out-of-memory", "interrupted".
    """

    ended: str
    why: Evidence | None = None  # where `ended` says that it failed
    step_s: list[float] = field(default_factory=list)
    samples: float | None = None  # of all measured steps; None: batches have no size
    window_s: float = 0.0  # sum of step_s, ended by a device synchronisation
    blocks: list[Block] = field(default_factory=list)  # where it was measured in blocks, in order
    losses: list[float | None] = field(default_factory=list)  # at every backward since the start
    decisions: list[list[int]] = field(default_factory=list)  # of the first outputs, by row
    fingerprints: list[Fingerprint] = field(default_factory=list)  # per sample of the first batches
    peak_memory_bytes: int | None = None  # process tree; GPU peak where it trained on one
    gpu_memory: bool = False  # peak_memory_bytes is of the GPU
    on_device: bool = False  # a GPU or another accelerator was used: step_s are the host's stamps
    fixes: list[AppliedFix] = field(default_factory=list)
    setup_s: float | None = None  # time to the end of warm-up (start-up, compilation)
    wall_s: float = 0.0
    iterations: int | None = None  # since the start; None: the warm-up's and the window's
    stopped: bool = False  # from outside, so that how it ended says nothing about it
    late: bool = False  # it had its turn beside another launch, and the turn did not end
    cut_off: bool = False  # the end of the budget ended it, which says nothing about it either

    @property
    def counted(self) -> "LaunchTiming":
        """Return its blocks as a measured launch, whatever became of the program after them."""
        if not self.blocks or self.ended == "interrupted":
            return self
        return replace(self, ended="measured", why=None)

    @property
    def went(self) -> int:
        """Return the iterations since the start."""
        return self.iterations or 0

    @property
    def whole(self) -> Block:
        """Return all measured steps as a single block."""
        return Block(step_s=self.step_s, window_s=self.window_s, samples=self.samples)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One launch of each of two arms, compared: one sample. Fields hold (against, arm)."""

    launches: tuple[LaunchTiming, LaunchTiming]
    blocks: list[tuple[Block, Block]]  # neighbours in time; one each of launches in turns
    side_by_side: bool
    seconds: tuple[float, float] = (0.0, 0.0)  # wall time that each arm's launch is charged with


@dataclass(frozen=True, kw_only=True)
class SwitchedLaunch:
    """One launch in which arms were switched on and off. `ended`, `why` as in LaunchTiming."""

    ended: str
    why: Evidence | None = None
    blocks: list[Block] = field(default_factory=list)  # in the order they ran
    arms: list[list[AppliedFix]] = field(default_factory=list)  # what became of each arm's fixes
    failed_in: int | None = None  # the arm that was on (0: none) as the program failed or hung
    wall_s: float = 0.0
