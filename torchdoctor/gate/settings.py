"""What the user asked of a gate; accepted growth also by pyproject.toml's `[tool.torchdoctor]`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchdoctor.schema import Evidence, Workload
from torchdoctor.schema.errors import UsageError
from torchdoctor.schema.record_files import BrokenToml, parsed_toml

if TYPE_CHECKING:
    from torchdoctor.clusters.cluster import Cluster

_TABLE = "[tool.torchdoctor.tolerance]"
# Accepted growth by metric; data_loader_share is in shares of the step, not relative.
DEFAULT_TOLERANCES = {"step_time": 0.02, "samples_per_s": 0.02, "peak_memory": 0.10}
# samples_per_s is the step time, inverted, and judged by its tolerance.
METRICS = ("step_time", "peak_memory", "data_loader_share")


@dataclass(frozen=True, kw_only=True)
class GateSettings:
    """What the user asked for. `tolerances`: accepted growth by metric, as shares."""

    tolerances: dict[str, float]
    told_memory: float | None = None  # growth that the report of the applied patch measured
    budget_s: float = 600.0
    timeout_s: float = 600.0
    output: Path | None = None
    steps: int | None = None
    warmup: int | None = None
    step_on: str | None = None
    seed: int = 0
    sandbox: bool = True
    network: bool = True  # whether launches may use it
    side_by_side: bool = True
    remarks: Sequence[Evidence] = ()  # of the job that it runs in
    cluster: "Cluster | None" = None  # whose nodes measure pairs


def program_folder(workload: Workload) -> str:
    """Return where the program lies: its script's folder, else the folder it starts in."""
    return str(Path(workload.script).parent) if workload.script else workload.cwd


def tolerances(folder: str, given: str | None) -> dict[str, float]:
    """Return accepted growth by metric, as shares: of pyproject.toml, then of the command line.

    The nearest pyproject.toml from the folder upwards is read; `given` is such as
    "step_time=5%,peak_memory=10%". Raise UsageError for an unknown metric or a value of no share.
    """
    named: dict[str, float] = {}
    for part in filter(None, (entry.strip() for entry in (given or "").split(","))):
        name, equal, value = part.partition("=")
        if not equal:
            raise UsageError(f"--tolerance takes METRIC=SHARE, e.g. step_time=5%, not '{part}'.")
        metric = _known(name.strip(), "--tolerance")
        if metric in named:
            raise UsageError(f"--tolerance names {metric} twice: keep one of them.")
        named[metric] = _share(value.strip(), part)
    accepted = {**DEFAULT_TOLERANCES, **_stored(Path(folder)), **named}
    return {**accepted, "samples_per_s": accepted["step_time"]}


def _stored(folder: Path) -> dict[str, float]:
    files = [path / "pyproject.toml" for path in (folder, *folder.parents)]
    path = next((path for path in files if path.is_file()), None)
    if path is None:
        return {}
    try:
        table: Any = parsed_toml(path.read_text(encoding="utf-8"))
    except (BrokenToml, UnicodeDecodeError, OSError) as error:
        raise UsageError(f"{path} cannot be read: {error}.") from error
    for name in ("tool", "torchdoctor", "tolerance"):
        unknown = sorted(set(table) - {"tolerance"}) if name == "tolerance" else []
        if unknown:
            raise UsageError(f"{path}: [tool.torchdoctor] has no '{unknown[0]}', only 'tolerance'.")
        table = table.get(name, {})
        if not isinstance(table, dict):
            raise UsageError(f"{path}: {_TABLE} must be a table; '{name}' is none.")
    return {_known(name, f"{path}: {_TABLE}"): _share(value, name) for name, value in table.items()}


def _known(name: str, where: str) -> str:
    if name not in METRICS:
        raise UsageError(f"{where} knows no metric '{name}': choose {', '.join(METRICS)}.")
    return name


def _share(value: Any, of: str) -> float:
    """Return 0.05 for "5%", "0.05" or 0.05."""
    text = str(value).strip()
    percents = text.endswith("%")
    try:
        share = float(text[:-1]) / 100 if percents else float(text)
    except ValueError:
        share = -1.0
    # 5 is as likely 5 % as 500 %.
    if not 0.0 <= share <= 10.0 or (share >= 1.0 and not percents) or isinstance(value, bool):
        raise UsageError(f"'{value}' of {of} is no tolerance: write it like 5% or 0.05.")
    return share
