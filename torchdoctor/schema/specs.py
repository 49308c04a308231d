"""What check, fix and ceiling files declare: one typed value each, named as the file is."""

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from torchdoctor.schema.evidence import Evidence, fact
from torchdoctor.schema.location import Location
from torchdoctor.schema.recording import Recording
from torchdoctor.schema.report import Finding
from torchdoctor.schema.touched import Touched
from torchdoctor.schema.traced import TraceStatistics

Branch = Literal["data_loader", "memcpy", "communication", "gpu", "cpu", "other"]
Severity = Literal["high", "moderate", "advice"]
_HIGH = 0.2  # share of the step: from here on a symptom is severe, unless its check says otherwise
Settings = dict[str, Any]
Sentence = Callable[[Recording], str | None]  # None: there is nothing to say
Doubt = Callable[[Recording], Evidence | None]  # None: there is none
Touches = Sequence[Touched] | None  # of one fix; None: the recording cannot say; empty: nothing
_PERMANENT = re.compile(r"^Make it permanent\n-+\n(.*?)(?=^\S[^\n]*\n-+$|\Z)", re.M | re.S)
_HEADING = re.compile(r"^## (.+)$", re.M)
PLATFORMS = {"cuda": "CUDA", "rocm": "ROCm", "xpu": "Intel's XPU"}
RISKS = {
    "exactly": 0,
    "within rounding": 1,
    "corrects results": 1,
    "lower precision": 2,
    "changes training": 3,
}


@cache
def _docstring(file: str) -> str:
    return ast.get_docstring(ast.parse(Path(file).read_text(encoding="utf-8"))) or ""


@dataclass(frozen=True, kw_only=True)
class Symptom:
    """An observation of a check in a recording. `CheckSpec.findings` makes a finding of it."""

    evidence: Evidence | list[Evidence]  # one fact with figures, or several
    share: float | None = None  # of the step, 0 to 1; None: not measured
    location: Location | None = None
    severity: Severity | None = None  # None: high from a fifth of the step on, moderate below it


Symptoms = Iterator[Symptom]  # what a check's function yields


@dataclass(frozen=True, kw_only=True)
class TreeQuestion:
    """A question of the decision tree's path, which one check of each branch asks."""

    text: str
    metric: str  # what `measure` returns, in words
    measure: Callable[[Recording], float | None]
    needs_gpu: bool = False  # without a GPU the answer is "no GPU"
    optional: bool = False  # the path leaves it out where nothing was measured


def _declaring_file() -> str:
    """Return the file of the caller's caller: an entry is declared in the file that it is."""
    file: str = sys._getframe(2).f_globals["__file__"]
    return file


@dataclass(frozen=True, kw_only=True)
class CatalogueEntry:
    """A file of the catalogue: its name is the id, its docstring the page."""

    file: str = field(default_factory=_declaring_file)
    page: str | None = None  # None: the file's docstring
    also_known_as: tuple[str, ...] = ()  # former ids, and those that became a part of it

    @property
    def ident(self) -> str:
        """The id, which is the name of the file."""
        return Path(self.file).stem.replace("_", "-")

    @property
    def text(self) -> str:
        """The page's text with underlined headings, without the facts that the catalogue adds."""
        page = _docstring(self.file) if self.page is None else inspect.cleandoc(self.page)
        return _HEADING.sub(lambda heading: f"{heading[1]}\n{'-' * len(heading[1])}", page)

    def section(self, title: str) -> str:
        """Return the first paragraph of a section of the page as one line; "" without one."""
        _, heading, rest = self.text.partition(f"\n{title}\n{'-' * len(title)}\n")
        return " ".join(rest.partition("\n\n")[0].split()) if heading else ""

    @property
    def title(self) -> str:
        """The first line of the page."""
        return self.text.split("\n", 1)[0]


@dataclass(frozen=True, kw_only=True)
class CheckSpec(CatalogueEntry):
    """A question about a recording, with all that other rooms need to know of it.

    The file's docstring is the check's page; its sections are: What it means, What to do (required
    where no fix treats it), How it is measured, Not to be confused with.
    """

    branch: Branch
    threshold: float
    unit: str  # of the threshold; that of a share begins with "%"
    source: str  # who published the threshold, or "torchdoctor" with the reason
    examine: Callable[[Recording], Iterable[Symptom]]  # pure
    fires: Sequence[dict[str, Any]]  # partial recordings in which it finds something
    quiet: Sequence[dict[str, Any]]  # partial recordings in which it finds nothing
    sentences: Mapping[str, str] = field(default_factory=dict)  # of facts; `reports.templates`
    question: TreeQuestion | None = None
    phases: tuple[str, ...] = ()  # fields of StepStatistics whose sum its share cannot exceed
    share_field: str | None = None  # field of Shares that its share cannot exceed
    share_prefix: str = ""  # words before its share where that is not of what the id names
    verdict: Literal["first", "last", "all"] = "first"  # evidence to quote; "all": nothing else
    advises: tuple[str, ...] = ()  # facts that say what to do here, where a page can but in general
    of_own_code: bool = False  # its findings are functions of the program's own
    # Its evidence goes first where its share exceeds the bottleneck's; without a share always,
    # unless it is mere advice.
    opens_verdict: bool = False
    # Its evidence goes last where it is severe, unless its share is below half of the step.
    closes_verdict: bool = False
    # What a watched run asks it, beside checks of phases: "other-programs", "uneven-ranks"; or "".
    watch_asks: str = ""

    def findings(self, recording: Recording) -> list[Finding]:
        """Return what the check finds in a recording."""
        return [
            Finding(
                check=self.ident,
                share_of_step=symptom.share,
                evidence=[symptom.evidence]
                if isinstance(symptom.evidence, Evidence)
                else symptom.evidence,
                location=symptom.location,
                severity=symptom.severity
                or ("high" if (symptom.share or 0.0) >= _HIGH else "moderate"),
            )
            for symptom in self.examine(recording)
        ]

    def asks(self, branch: str) -> bool:
        """Return True if this is the check whose question the tree asks for a branch."""
        return self.question is not None and self.branch == branch


@dataclass(frozen=True, kw_only=True)
class Example:
    """A program that prints one thing without a fix and another with it."""

    code: str  # of the program, behind its `import torch`
    without: str  # its output
    with_fix: str
    settings: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)  # before the fix changes it
    needs: str = ""  # the user's libraries that it imports, or "cuda"

    @property
    def program(self) -> str:
        """The whole program."""
        return f"import torch\n{self.code}"


@dataclass(frozen=True, kw_only=True)
class TrainingAdvice:
    """A fix that is about what is trained, not about how fast."""

    costs: str  # what it may cost, in a sentence
    untriable: Doubt = lambda _: None  # why no short run shows anything of it


@dataclass(frozen=True, kw_only=True)
class SwitchSpec(CatalogueEntry):
    """A fix or a ceiling: it may be switched on and off while a program runs."""

    by_second_loader: bool = False  # by a second loader with the changed arguments
    by_own_loader: bool = False  # while it is on, the program's own loader sets the pace
    settles_s: float = 0.0  # seconds after it was switched
    sentences: Mapping[str, str] = field(default_factory=dict)  # of refusals, `reports.templates`


@dataclass(frozen=True, kw_only=True)
class FixSpec(SwitchSpec):
    """A remedy, with all that other rooms need to know of it.

    The file's docstring is the fix's page; its sections are: What it does, Why it helps, Risks,
    Make it permanent, Sources.
    """

    name: str  # of a few words, for tables: "cache decoded samples"
    treats: tuple[str, ...] = ()  # ids of checks
    keeps_results: Literal[
        "exactly", "within rounding", "corrects results", "lower precision", "changes training"
    ]
    keeps_but: str = ""  # what that class does not say of this fix
    when: Literal["launch", "between steps"] = "launch"
    untried: str = ""  # why no run applies it, a sentence: it is offered as code, to apply by hand
    # Probability that it makes a program faster to which it applies, by our own runs where the file
    # says so, else judged: 0.5 to 0.8 where it treats what was observed, 0.2 to 0.3 elsewhere.
    p_helps: float = 0.35

    refuses: Doubt  # why it cannot apply
    settings: Callable[[Recording], list[Settings]] = lambda _: [{}]  # most promising first
    says: Callable[[Settings], str | None] = lambda _: None  # with these settings; None: the title
    by_hand: Callable[[Recording], bool] = lambda _: False  # here it is code alone
    # What of the recorded step it works on and what is left: nothing else bounds its gain.
    touches: Callable[[Recording], Touches] = lambda _: None
    no_bound: str = ""  # in place of that: why nothing recorded bounds it, a sentence
    phases: tuple[str, ...] = ()  # fields of StepStatistics in which it works: fixes compete there
    includes: Callable[[Recording], tuple[str, ...]] = lambda _: ()  # ids of fixes within it
    together: Callable[[Settings, Recording], dict[str, Settings]] = lambda *_: {}
    ladder: Callable[[Recording], dict[str, Any] | None] = lambda _: None  # of `trials.arms.Ladder`
    next_settings: Callable[..., Settings | None] | None = None  # a search; see `trials.sizes`
    needs_finding: bool = False  # tried only where a finding calls for it, or where it is named
    offered_untried: bool = True  # shown as code where no run has tried it
    untried_needs: tuple[str, ...] = ()  # checks; untried, it is shown only where one has a finding
    doubt: Doubt = lambda _: None  # why it is shown only where it trained the same
    note: Doubt = lambda _: None  # said of its first trial, however it ended

    setup_s: float = 0.0  # what it costs once, so that cheaper trials come first
    more_setup_s: Callable[[Settings, Recording], float] = lambda *_: 0.0  # and more in a program
    fills_in_first_epoch: bool = False  # it gains from the second epoch on; trials warm up for one
    reorders: bool = False  # the same batches come in another order
    needs_free_cpus: bool = False  # on a busy machine it may gain nothing that it gains elsewhere
    prepares_elsewhere: bool = False  # in workers: it gains no more than the CPUs leave to them

    apply: Callable[[Any, Settings, Any], None] | None = None  # (torch, settings, Program)
    environment: Callable[[Settings], dict[str, str | None]] = lambda _: {}  # None: taken away

    instruction: Callable[[Settings, Recording], str]  # what to change, as code
    edits: Callable[[Settings, Recording], list[Any]] = lambda *_: []  # of `edits.Edit`
    location: Callable[[Recording], Location | None] = lambda _: None  # what to change
    suits: Callable[[TraceStatistics], bool] = lambda _: True  # whether it makes sense for a trace
    platforms: tuple[str, ...] = ()  # whose recorded devices it is for; (): anybody's
    advice: Sentence | None = None  # code for a trace; None: its GPU cannot do it
    least_capability: tuple[int, int] = (0, 0)  # compute capability of a GPU
    least_torch: tuple[int, int] = (0, 0)  # the first release that has what it calls

    training: TrainingAdvice | None = None
    offers: Sequence[tuple[dict[str, Any], str]] = ()  # partial recordings, a part of the code
    refusals: Sequence[tuple[dict[str, Any], str]] = ()  # partial recordings, the fact
    example: Example | None = None

    @property
    def permanent_form(self) -> str:
        """The code of the page's "Make it permanent", which fits any program."""
        match = _PERMANENT.search(self.text)
        return textwrap.dedent(match[1]).strip("\n") if match else ""

    @property
    def unbounded(self) -> str:
        """Why no figure says what it gains at most, a sentence; empty: what it touches does."""
        learning = "It changes what a step learns, not how long it takes."
        return self.no_bound or (learning if self.training is not None else "")

    @property
    def risk(self) -> int:
        """0 same result, 1 rounding or order, 2 precision, 3 changes training."""
        return RISKS[self.keeps_results]

    def refusal(self, recording: Recording) -> Evidence | None:
        """Return why it cannot apply to a program, or to its device or its torch."""
        device = recording.accelerator if recording.has_gpu else None
        if device is not None and self.platforms and device not in self.platforms:
            platforms = [PLATFORMS.get(name, name) for name in self.platforms]
            on = PLATFORMS.get(device, device)
            return fact("for-other-platforms", platforms=platforms, on=on)
        return self.refuses(recording) or self.lack(recording)

    def lack(self, recording: Recording) -> Evidence | None:
        """Return what the program's torch is too old for; None: nothing, or it is not known."""
        release = recording.torch_release
        if release is None or release >= self.least_torch:
            return None
        had, needed = (".".join(map(str, numbers)) for numbers in (release, self.least_torch))
        return fact("torch-too-old", torch=had, needed=needed)

    def is_for(self, trace: TraceStatistics) -> bool:
        """Return True if it makes sense for a trace, and for the device that it is of."""
        on_platform = not (trace.has_device and self.platforms) or trace.platform in self.platforms
        return on_platform and self.suits(trace)

    @property
    def applied(self) -> Literal["launch", "between steps", "by hand"]:
        """When it is applied."""
        return "by hand" if self.untried else self.when

    def offered_as_code(self, recording: Recording) -> bool:
        """Return True if no trial of its speed can apply it to this program."""
        return bool(self.untried) or self.training is not None or self.by_hand(recording)


@dataclass(frozen=True, kw_only=True)
class AblationSpec(SwitchSpec):
    """A cost that is taken away to try what fixing its branch of the tree could give at most."""

    removes: str  # as in "without ..."
    whole: bool | Callable[[Recording], bool]  # it takes all of the branch's cost away
    branch: Branch | Callable[[Recording], Branch]
    share: Callable[[Recording], float | None]  # of the step, as far as it was observed
    settings: Callable[[Recording], Settings | None]  # None: there is nothing to try
    apply: Callable[[Any, Settings, Any], None]

    def branch_in(self, recording: Recording) -> Branch:
        """Return the branch of the tree whose cost it takes away in this program."""
        return self.branch(recording) if callable(self.branch) else self.branch

    def takes_all(self, recording: Recording) -> bool:
        """Return True if it takes all of the branch's cost away, not a part of it."""
        return self.whole(recording) if callable(self.whole) else self.whole


def process(**facts: Any) -> dict[str, Any]:
    """Return an example recording of one process."""
    return {"processes": [{"pid": 1, **facts}]}


def tensor_call(kind: str, name: str, **facts: Any) -> dict[str, Any]:
    """Return an example of a call that was noted in the analysed steps."""
    return {"kind": kind, "name": name, "location": {"file": "/w/train.py", "line": 12}, **facts}


def reading(mount: dict[str, Any], memory_bytes: int | None = 2**34) -> dict[str, Any]:
    """Return an example recording whose loader waits for files of a mount, a file a sample."""
    loader = {"ident": 0, "batches": 110, "samples": 880, "sample_cpu_share": 0.1}
    files = {"files": 880, "file_bytes": 88_000_000, "opens": 880, "cold_file_s": 0.0008}
    return {
        "steps": {"data_wait_s": 0.008, "forward_s": 0.002},
        "sensors": {"read_bytes_per_s": 6e7},
        **process(loaders=[loader]),
        "storage": {"mounts": [{**files, **mount}], "memory_bytes": memory_bytes},
    }


def on_gpu(name: str, **facts: Any) -> dict[str, Any]:
    """Return an example recording of a machine with one GPU."""
    return {"environment": {"gpus": [{"index": 0, "name": name, **facts}]}}


def trace(**facts: Any) -> dict[str, Any]:
    """Return an example recording with a trace of four steps of 100 ms."""
    return {"trace": {"path": "t", "steps": 4, "step_s": 0.1, **facts}}
