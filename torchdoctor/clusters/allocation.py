"""What a scheduler gave to this process: the job, its nodes, the time that is left."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from torchdoctor.machine.environment import affinity, usable_cpus
from torchdoctor.schema import Evidence, fact
from torchdoctor.schema.errors import UsageError

_ASK_S = 20.0
_REPORT_S, _REPORT_SHARE = 30.0, 0.2  # of the job's time that is kept for ending and the report
_UNITS_S = (1, 60, 3600, 86400)
_RAY_NOW = Path("/tmp/ray/ray_current_cluster")


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """A job of Slurm that this process runs in; `left_s`: None where it has no time limit."""

    job: str
    nodes: list[str]
    here: str | None  # this node's name; None: a login node (salloc)
    left_s: float | None

    @property
    def used(self) -> Evidence:
        """Return what is used of it."""
        gpus = os.environ.get("CUDA_VISIBLE_DEVICES")
        return fact(
            "ran-in-job",
            job=self.job,
            nodes=len(self.nodes),
            cpus=usable_cpus(),
            affinity=len(affinity()),
            gpus=gpus or (None if gpus is None else "none"),
        )


def allocation() -> Allocation | None:
    """Return the job of Slurm that this process runs in; None: it runs in none."""
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        return None
    names = os.environ.get("SLURM_JOB_NODELIST", "")
    nodes = asked("scontrol", "show", "hostnames", names).split() if names else []
    here = os.environ.get("SLURMD_NODENAME")
    left = asked("squeue", "--noheader", "--jobs", job, "--format=%L").strip()
    return Allocation(job=job, nodes=nodes or [here or job], here=here, left_s=seconds_of(left))


def seconds_of(text: str) -> float | None:
    """Return seconds of Slurm's days-hours:minutes:seconds; None for UNLIMITED and the like."""
    days, _, clock = text.rpartition("-")
    parts = [*clock.split(":")[::-1], *([days] if days else [])]
    try:
        return float(sum(int(part) * unit for part, unit in zip(parts, _UNITS_S, strict=False)))
    except ValueError:
        return None


def within_job(budget_s: float) -> tuple[float, list[Evidence]]:
    """Return the budget as far as the job's time goes, and what a report has to say of the job.

    Raise UsageError in a copy that srun started beside another one.
    """
    given = allocation()
    if given is None:
        return budget_s, []
    if os.environ.get("SLURM_PROCID", "0") != "0":
        raise UsageError(
            "srun started torchdoctor several times: start it once (srun --ntasks=1 torchdoctor "
            "run ...), or the training below it (torchdoctor run -- srun python train.py)."
        )
    outside = (
        [fact("srun-outside-layer")] if any(Path(word).name == "srun" for word in sys.argv) else []
    )
    left_s = math.inf if given.left_s is None else given.left_s
    most_s = left_s - min(_REPORT_S, _REPORT_SHARE * left_s)
    if most_s >= budget_s:
        return budget_s, [given.used, *outside]
    shortened = fact("job-shortens-budget", left_s=left_s, budget_s=most_s)
    return max(most_s, 1.0), [given.used, shortened, *outside]


def anew(output: Path | None, remarks: list[Evidence]) -> Path | None:
    """Return the folder asked for; where a requeued job finds its own, another, with a remark."""
    again = os.environ.get("SLURM_RESTART_COUNT", "0")
    if output is None or again == "0" or not output.is_dir() or not any(output.iterdir()):
        return output
    beside = output.with_name(f"{output.name}-{again}")
    remarks.append(fact("job-requeued", before=str(output), now=str(beside)))
    return beside


def described() -> list[str]:
    """Return what is seen of a scheduler, as lines of `torchdoctor env`."""
    given = allocation()
    lines = []
    if given is not None:
        left = "no time limit" if given.left_s is None else f"{given.left_s:.0f} s left"
        where = given.here or "a login node"
        lines.append(f"Slurm        job {given.job}, nodes {', '.join(given.nodes)}, {left}")
        lines.append(f"             this is {where}, {len(affinity())} CPUs by affinity")
    elif version := asked("srun", "--version").strip():
        lines.append(f"Slurm        {version}, outside a job (--on slurm)")
    address = os.environ.get("RAY_ADDRESS")
    if address is None and _RAY_NOW.is_file():
        address = _RAY_NOW.read_text(errors="replace").strip()
    return [*lines, *([f"Ray          a cluster at {address} (--on ray)"] if address else [])]


def asked(*command: str) -> str:
    """Return what a command of Slurm prints; empty where it is not there or fails."""
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ended.stdout if ended.returncode == 0 else ""
