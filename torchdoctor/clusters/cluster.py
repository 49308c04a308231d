"""`--on ray[=ADDRESS]` and `--on slurm[=OPTIONS]`: from the option to the nodes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchdoctor.bench.measurement import ProgramLaunches
from torchdoctor.clusters import slurm
from torchdoctor.clusters.allocation import anew, within_job
from torchdoctor.clusters.engine import ClusterEngine
from torchdoctor.clusters.fleet import Fleet, Node
from torchdoctor.clusters.search import ClusterSearch
from torchdoctor.clusters.tasks import Launches
from torchdoctor.schema.errors import UsageError
from torchdoctor.trials.search import Search

KINDS = ("ray", "slurm")


def placed(
    budget_s: float, on: str | None, nodes: int, gpus: int, output: Path | None
) -> tuple[dict[str, Any], int | None]:
    """Return a run's settings of time and place, and the exit code of a job that ran it instead."""
    cluster = Cluster.of(on, nodes, gpus) if on is not None or nodes or gpus else None
    code = cluster.placed() if cluster is not None else None
    if code is not None:
        return {}, code
    budget_s, remarks = within_job(budget_s)
    output = anew(output, remarks)
    place = {"budget_s": budget_s, "output": output, "remarks": remarks, "cluster": cluster}
    return place, None


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The options of the command line."""

    kind: str
    options: str
    nodes: int  # 0: as many as the cluster, or the job, has
    gpus: int  # of each pair

    @classmethod
    def of(cls, on: str | None, nodes: int, gpus: int) -> Cluster:
        """Return what `--on` names; raise UsageError for another scheduler, or none."""
        if on is None:
            raise UsageError("--nodes and --gpus-per-pair go with --on ray or --on slurm.")
        kind, _, options = on.partition("=")
        if kind not in KINDS:
            raise UsageError(f"--on takes ray[=ADDRESS] or slurm[=OPTIONS], not '{on}'.")
        return cls(kind=kind, options=options, nodes=nodes, gpus=gpus)

    def placed(self) -> int | None:
        """Run this command line on a node if it has to; return its exit code. None: go on here.

        Raise UsageError where the cluster cannot be used.
        """
        if self.kind == "slurm":
            return slurm.run_in_a_job(self.options, self.gpus)
        from torchdoctor.clusters import ray_nodes

        ray_nodes.nodes(self.options, self.nodes, self.gpus)  # what is wrong is told before the run
        return None

    @property
    def search(self) -> type[Search]:
        """Return the search that keeps every node busy."""
        return ClusterSearch

    def engine(
        self, launches: ProgramLaunches, chance: random.Random, *, patience: int = 0
    ) -> ClusterEngine:
        """Return the engine that measures pairs of this program there; close it at the end."""
        recorder = launches.recorder
        nodes: Sequence[Node]
        if self.kind == "slurm":
            folder = recorder.folder / "tasks"
            folder.mkdir(mode=0o700, exist_ok=True)
            nodes, doubts = slurm.nodes(self.options, self.nodes, self.gpus, folder)
        else:
            from torchdoctor.clusters import ray_nodes

            nodes, doubts = ray_nodes.nodes(self.options, self.nodes, self.gpus)
        fleet = Fleet(nodes, Launches.of(launches), doubts)
        return ClusterEngine(launches, chance, fleet=fleet, patience=patience)
