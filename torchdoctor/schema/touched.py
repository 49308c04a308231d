"""What of a recorded step a fix works on, what is left in its place, and the gain at most."""

from dataclasses import dataclass
from typing import Annotated


@dataclass(frozen=True, kw_only=True)
class Touched:
    """A part of a step that a fix works on.

    Of the parts of one fix no moment counts twice. What else the device does remains in any case.
    """

    label: str  # in a few words: "copies from pageable memory"
    seconds: float  # of a step, on whichever timeline it runs
    of_s: float  # that step
    remains_s: float = 0.0  # what is left in its place at least
    beside_s: float = 0.0  # what else the device does in that step
    branch: str = ""  # of the decision tree whose cost it is all of; "": several, or none

    @property
    def saved_share(self) -> float:
        """Return the share of the step that goes at most."""
        saved_s = min(self.seconds - max(self.remains_s, 0.0), self.of_s - self.beside_s)
        return min(max(saved_s, 0.0) / self.of_s, 1.0) if self.of_s > 0 else 0.0


@dataclass(frozen=True, kw_only=True)
class Bound:
    """The most that a fix can gain."""

    speedup: float  #: The step as recorded over the step without what the fix can save.
    works_on: str  #: What of the step it works on, in a few words.
    #: share: by the time of what it works on. replay, experiment: that said less, and is believed.
    by: Annotated[str, "share", "replay", "experiment"] = "share"
