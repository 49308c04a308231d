"""`LaunchSpec`: all that one launch differs by from another, and the plan file made from it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from torchdoctor.launch.sandbox import Contents
from torchdoctor.schema import Boundary, Workload
from torchdoctor.schema.record_files import parsed_toml

BASELINE = "baseline"
Variables = Mapping[str, str | None]  # None: taken away


class FixFile(NamedTuple):
    """One fix as the probe is told of it."""

    id: str
    file: Path
    settings: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Switching:
    """How an arm is switched on and off within one launch."""

    settle_s: float = 0.0  # how long at least is discarded after it was switched on, and off
    workers: int = 0  # of a second loader that the arm brings with it
    ahead: int = 0  # batches that each of these workers prepares ahead


@dataclass(frozen=True, kw_only=True)
class LaunchSpec:
    """One launch, or an arm of a comparison: a program and what is changed in it."""

    name: str  # tells arms apart, and names the launch's folder
    fixes: tuple[FixFile, ...] = ()  # applied at run time by the probe
    contents: Contents = field(default_factory=dict)  # of files; needs an overlay
    variables: Variables = field(default_factory=dict)  # of the environment, for this launch alone
    workload: Workload | None = None  # in place of the program's own command
    boundary: Boundary | None = None  # between iterations; None: unknown, or as in other launches
    seed_offset: int = 0
    plan: Mapping[str, Any] = field(default_factory=dict)  # what else the probe is told
    setup_s: float = 0.0  # one-time cost to expect before it was ever launched (compiling)
    settled_after: int = 0  # iterations after which its fixes work as they go on working
    workers: int = 0  # of the loader that its fixes make
    switching: Switching | None = None  # None: it cannot be switched within one launch
    forked: bool = False  # from the warm image, where there is one

    @property
    def is_baseline(self) -> bool:
        """Return True for the untouched program."""
        return self.name == BASELINE

    def plan_content(self, seed: int) -> dict[str, Any]:
        """Return the content of the plan file; `seed` is given to a program that sets none."""
        boundary = None if self.boundary is None else asdict(self.boundary)
        content = {"purpose": "time", "boundary": boundary, "fixes": plan_entries(self.fixes)}
        if self.boundary is None or self.boundary.infers:
            content["entry_points"] = entry_points()
        return {**content, "seed": seed, "seed_offset": self.seed_offset, **self.plan}


@cache
def entry_points() -> list[dict[str, Any]]:
    """Return the known functions by which programs infer, as the plan file names them."""
    file = Path(__file__).with_name("entry_points.toml")
    return list(parsed_toml(file.read_text(encoding="utf-8"))["entry"])


UNTOUCHED = LaunchSpec(name=BASELINE)


def plan_entries(fixes: tuple[FixFile, ...]) -> list[dict[str, Any]]:
    """Return fixes as the plan file names them."""
    return [{"id": fix.id, "file": str(fix.file), "settings": fix.settings} for fix in fixes]
