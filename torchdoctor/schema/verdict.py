"""What holds the step back, as data; `reports` alone makes sentences of it."""

from dataclasses import dataclass, field
from typing import Annotated

from torchdoctor.schema.evidence import Evidence
from torchdoctor.schema.location import Location
from torchdoctor.schema.trials import Interval


@dataclass(frozen=True, kw_only=True)
class Quote:
    """Facts of a finding that a verdict repeats."""

    check: str  #: The check that found it.
    facts: list[str]  #: Which of its facts, in their order.


@dataclass(frozen=True, kw_only=True)
class VerdictPart:
    """A part of a verdict's share."""

    name: Annotated[  #: blocked: in copy calls; driver: in its calls; waits: for other ranks.
        str, "copies", "blocked", "operators", "driver", "waits", "exchange"
    ]
    share: float  #: Of the step.


@dataclass(frozen=True, kw_only=True)
class Removal:
    """What the program gained when the cost of a verdict was removed."""

    removed: str  #: What was removed, in words: "its data loader".
    speedup: Interval  #: Of the program without that.
    outcome: Annotated[  #: hidden: other work hides the cost; nothing: hardly any was expected.
        str, "gain", "hidden", "nothing"
    ]
    limit: str | None = None  #: What is the limit instead, in words; null: nothing gained far more.
    limit_speedup: Interval | None = None  #: Of the program without that.


@dataclass(frozen=True, kw_only=True)
class ReplayedGain:
    """What a trace, replayed without the branch of the largest share, gains beside another."""

    branch: str  #: Branch of the tree whose share the verdict names, which was left out.
    speedup: float  #: Of the step without that.
    hidden: bool = True  #: That gains hardly anything: other work hides its cost.
    is_limit: bool = False  #: `best` gains far more, so that it is the bottleneck.
    best: str | None = None  #: Branch that gains most; null: none gains anything.
    best_speedup: float | None = None  #: Of the step without that.
    profiler_slows: bool = False  #: The profiler slows that branch down, so it gains less.
    unseen_share: float | None = None  #: Of the step, waiting for what the trace lacks; null: few.


@dataclass(frozen=True, kw_only=True)
class LatestRank:
    """How long another rank waits for the one that the figures are of."""

    rank: int  #: The one that comes last.
    last_share: float  #: Of the collectives that it comes last to.
    waiting_rank: int  #: The one that waits most.
    waiting_share: float  #: Of its own step.


@dataclass(frozen=True, kw_only=True)
class RestOfRecording:
    """That a verdict is of a part of the trace, as the rest of it is no part of a usual step."""

    why: Evidence  #: What is no part of a usual step.
    seconds: float  #: Of what is left.


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What holds the step back, as data: kind, place, share, proof, cure."""

    #: Which text it is; finding: its proof says all; cpu_beside: the CPU beside what is larger;
    #: earlier: of schema 1.x, of which the sentence is all that is known.
    kind: Annotated[
        str,
        "data_loader",
        "memcpy",
        "communication",
        "gpu",
        "gpu_partly",
        "cpu",
        "cpu_only",
        "cpu_beside",
        "other",
        "finding",
        "ranks_wait",
        "none",
        "not_measured",
        "too_short",
        "start_up",
        "no_time",
        "no_device",
        "earlier",
    ]
    share: float | None = None  #: Of the step; null: the kind has none.
    parts: list[VerdictPart] = field(default_factory=list)  #: What the share adds up from.
    place: Location | None = None  #: The line that most of the share passes in; null: no such line.
    few_events: int | None = None  #: It rests on so few that it is a hint; null: on enough.
    opening: list[Quote] = field(default_factory=list)  #: Findings to know first, without a share.
    beside: list[Quote] = field(default_factory=list)  #: Larger findings, which are said first.
    closing: list[Quote] = field(default_factory=list)  #: Findings of waste, which are said last.
    proof: Quote | None = None  #: Facts of the finding that explains it; null: none is repeated.
    facts: list[Evidence] = field(default_factory=list)  #: Facts of no check that it rests on.
    why: Evidence | None = None  #: Why nothing is known: too_short, start_up, no_device; else null.
    rank: int | None = None  #: The rank that it is of; null: no rank is waited for.
    latest: LatestRank | None = None  #: That others wait for that rank; null: hardly any.
    rest: RestOfRecording | None = None  #: The part that it is of; null: whole steps.
    experiment: Removal | None = None  #: The cost removed for real; null: that was not tried.
    replay: ReplayedGain | None = None  #: What others gain by replay; null: less than it.
