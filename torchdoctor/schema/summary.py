"""What stands first in every JSON: the answer alone, small enough to be read whole."""

from dataclasses import dataclass

from torchdoctor.schema.trials import Interval

MOST_BYTES = 2048  # of a summary as JSON


@dataclass(frozen=True, kw_only=True)
class SummarizedFixes:
    """What is recommended, and what that rests on."""

    fixes: str  #: The fixes with their settings.
    speedup: Interval | None = None  #: All together, against the untouched program.
    evidence: str  #: How it was measured, and whether training stays the same.


@dataclass(frozen=True, kw_only=True)
class NextCommand:
    """What to do next."""

    command: str  #: The exact command.
    why: str  #: Why that one.


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The answer: in at most 2 KB, texts cut short where they must be."""

    bottleneck: str | None = None  #: The branch of the tree; null: not a diagnosis.
    sentence: str  #: The verdict in one sentence.
    location: str | None = None  #: file:line; null: no such place.
    cause: str | None = None  #: The check that explains it, and what it saw.
    cure: str | None = None  #: What to change.
    recommendation: SummarizedFixes | None = None  #: null: nothing is recommended as measured.
    #: Samples, tokens, MFU, energy and savings; null: none is known.
    figures: str | None = None
    patch: str | None = None  #: The command that prints the change as a diff; null: there is none.
    next: NextCommand | None = None  #: null: nothing is left to do.
