"""Where a command runs: here, on the nodes of a cluster, within the job of a scheduler."""

import os
from typing import Annotated

import typer

from torchdoctor.pairs.engine import Spread
from torchdoctor.words.errors import UsageError

On = Annotated[
    str | None,
    typer.Option(help="Measure pairs on several nodes: ray[=ADDRESS] or slurm[='srun options']."),
]
Nodes = Annotated[int, typer.Option(min=0, help="How many nodes (0: all of the cluster or job).")]
Gpus = Annotated[int, typer.Option(min=0, help="GPUs that each pair gets on its node.")]


def placed(on: str | None, nodes: int, gpus_per_pair: int) -> Spread | None:
    """Return what opens the nodes; leave with the exit code of a run that a job made instead."""
    if on is None:
        if nodes or gpus_per_pair:
            raise UsageError("--nodes and --gpus-per-pair go with --on ray or --on slurm.")
        return None
    from torchdoctor.clusters.cluster import Cluster

    cluster = Cluster.of(on, nodes, gpus_per_pair)
    code = cluster.placed()
    if code is not None:
        raise typer.Exit(code)
    return cluster.fleet


def within_job(budget_s: float) -> tuple[float, list[str]]:
    """Return the budget as far as the scheduler's job goes, and sentences about that job."""
    if "SLURM_JOB_ID" not in os.environ:
        return budget_s, []
    from torchdoctor.clusters import allocation

    return allocation.within_job(budget_s)
