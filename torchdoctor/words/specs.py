"""What a check file declares: one typed value, whose id is the file's own name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Literal

from torchdoctor.words.program import Location
from torchdoctor.words.recording import Recording
from torchdoctor.words.report import Finding

Branch = Literal["data_loader", "memcpy", "communication", "gpu", "cpu", "other"]
Severity = Literal["high", "moderate", "advice"]
_HIGH = 0.2  # share of the step: from here on a symptom is severe, unless its check says otherwise


@dataclass(frozen=True, kw_only=True)
class Symptom:
    """What a check sees in a recording. `CheckSpec.findings` makes a finding of it."""

    evidence: Sequence[str]  # sentences with figures
    share: float | None = None  # of the step, 0 to 1; None: not measured
    location: Location | None = None
    severity: Severity | None = None  # None: high from a fifth of the step on, moderate below it


@dataclass(frozen=True, kw_only=True)
class TreeQuestion:
    """A question of the decision tree's path, which one check of each branch asks."""

    text: str
    metric: str  # what `measure` returns, in words
    measure: Callable[[Recording], float | None]
    needs_gpu: bool = False  # without a GPU the answer is "no GPU"
    optional: bool = False  # the path leaves it out where nothing was measured


@dataclass(frozen=True, kw_only=True)
class CheckSpec:
    """A question about a recording, with all that other rooms need to know of it.

    The file's docstring is the check's page; its sections are: What it means, What to do (required
    where no fix treats it), How it is measured, Not to be confused with.
    """

    file: str
    page: str | None
    branch: Branch
    threshold: float
    unit: str  # of the threshold; that of a share begins with "%"
    source: str  # who published the threshold, or "torchdoctor" with the reason
    examine: Callable[[Recording], Iterable[Symptom]]  # pure
    fires: Sequence[dict[str, Any]]  # partial recordings in which it finds something
    quiet: Sequence[dict[str, Any]]  # partial recordings in which it finds nothing
    question: TreeQuestion | None = None
    phases: tuple[str, ...] = ()  # fields of StepStatistics whose sum its share cannot exceed
    share_field: str | None = None  # field of Shares that its share cannot exceed
    share_prefix: str = ""  # words before its share where that is not of what the id names
    verdict: Literal["first", "last", "all"] = "first"  # evidence to quote; "all": nothing else
    opens_verdict: bool = False  # its evidence goes first where its share exceeds the bottleneck's
    also_known_as: tuple[str, ...] = ()  # former ids

    @property
    def ident(self) -> str:
        """Return the check's id, which is the name of its file."""
        return PurePath(self.file).stem.replace("_", "-")

    @property
    def text(self) -> str:
        """Return the page's text, without the facts that the catalogue adds."""
        return inspect.cleandoc(self.page or "")

    @property
    def title(self) -> str:
        """Return the first line of the page."""
        return self.text.split("\n", 1)[0]

    def findings(self, recording: Recording) -> list[Finding]:
        """Return what the check finds in a recording."""
        return [
            Finding(
                check=self.ident,
                share_of_step=symptom.share,
                evidence=list(symptom.evidence),
                location=symptom.location,
                severity=symptom.severity
                or ("high" if (symptom.share or 0.0) >= _HIGH else "moderate"),
            )
            for symptom in self.examine(recording)
        ]

    def asks(self, branch: str) -> bool:
        """Return True if this is the check whose question the tree asks for a branch."""
        return self.question is not None and self.branch == branch


def process(**facts: Any) -> dict[str, Any]:
    """Return an example recording of one process."""
    return {"processes": [{"pid": 1, **facts}]}


def trace(**facts: Any) -> dict[str, Any]:
    """Return an example recording with a trace of four steps of 100 ms."""
    return {"trace": {"path": "t", "steps": 4, "step_s": 0.1, **facts}}
