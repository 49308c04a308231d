"""What is known of a watched run, as data; `reports` alone makes sentences of it."""

from dataclasses import dataclass, field
from typing import Annotated

from torchdoctor import __version__
from torchdoctor.schema.evidence import Evidence
from torchdoctor.schema.location import Location
from torchdoctor.schema.report import Finding
from torchdoctor.schema.touched import Bound
from torchdoctor.schema.traced import RankTime
from torchdoctor.schema.trials import Interval


@dataclass(frozen=True, kw_only=True)
class ExplainedFact:
    """A fact of a watched run, and what explains it."""

    fact: Evidence  #: What happened.
    why: Evidence | None = None  #: What changed with it; null: not looked for.
    finding: Finding | None = None  #: What a check finds in the time that it is of; null: nothing.
    unit: str = "step"  #: What a step is called: a batch or a call, where the program infers.
    program: Annotated[str, "training", "inference"] = "training"
    sentence: str = ""  #: The same in words, for readers.


@dataclass(frozen=True, kw_only=True)
class Alert(ExplainedFact):
    """What the user should know while the program runs."""

    t_unix_s: float  #: When it began.
    step: int  #: The step that it began with.
    kind: Annotated[
        str,
        "slower",
        "evaluation",
        "checkpoint",
        "memory",
        "loss",
        "starved",
        "late",
        "dead",
        "hangs",
        "lags",
    ]
    rank: int | None = None  #: Of the process that it is of; null: it is no rank.
    cause: str = ""  #: The check that explains it, or the name of what does; empty: none is known.


@dataclass(frozen=True, kw_only=True)
class Period:
    """A part of the run; `phases_s`: means of a step."""

    t_unix_s: float
    first_step: int
    last_step: int
    step_s: float
    samples_per_s: float | None
    phases_s: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class SlowStep:
    """One of the slowest steps, with the phase that took the most more than usual."""

    step: int
    t_unix_s: float
    step_s: float
    phase: str
    phase_s: float
    recompiled: bool = False  # torch.compile compiled in it
    pass_began: bool = False  # a pass over the loader began with it


@dataclass(frozen=True, kw_only=True)
class OverlappingCalls:
    """Calls that several threads made: what one took by itself, and how many there were."""

    calls: int
    most_at_once: int
    per_s: float  # by the clock
    mean_s: float
    median_s: float  # this and the next one within 5 %
    p95_s: float
    longest_s: float


@dataclass(frozen=True, kw_only=True)
class WatchSummary:
    """A watched run; of several ranks, phases are those of the first that was logged."""

    schema_version: int = 3
    kind: str = "watched run"
    torchdoctor_version: str = __version__
    folder: str
    status: str  # "running", "ended", "killed", "no step"
    ending: list[Evidence]  # how it ended, or that it has not
    command: list[str]
    cwd: str = ""
    hosts: list[str] = field(default_factory=list)
    started_unix_s: float = 0.0
    elapsed_s: float = 0.0
    steps: int = 0
    program: Annotated[str, "training", "inference"] = "training"
    unit: str = "step"  # what a step is called: a batch or a call, where the program infers
    step: list[Evidence] = field(default_factory=list)  # what a step is
    location: Location | None = None  # of the loader or optimizer
    # Of calls that overlap; then what is told of a step below is left out. None: none do.
    overlapping: OverlappingCalls | None = None
    training_s: float = 0.0  # of all steps, without evaluation and checkpoints
    median_step_s: float | None = None
    best_step_s: float | None = None  # median of the best hour
    best_of_s: float = 3600.0  # how long that "hour" is: shorter in a short run
    phases_s: dict[str, float] = field(default_factory=dict)  # of the whole run
    periods: list[Period] = field(default_factory=list)
    slowest: list[SlowStep] = field(default_factory=list)
    drift: float | None = None  # a step of the last quarter, over one of the first
    drift_cause: Evidence | None = None  # None: there is no drift
    evaluations: int = 0  # what they and the checkpoints took is among the phases
    checkpoints: int = 0
    ranks: list[RankTime] = field(default_factory=list)
    rank_waiting: float | None = None  # mean share of the step
    slow_rank: ExplainedFact | None = None  # that the others wait for; None: for none
    alerts: list[Alert] = field(default_factory=list)
    cause: ExplainedFact | None = None  # what held it up most; None: it made no step
    own_cost: Interval | None = None  # a step with torchdoctor's hooks, over one without
    trying: str = ""  # the command that would try remedies
    at_most: Bound | None = None  # of the fix with the largest bound; None: none is known
