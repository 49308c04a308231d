"""`--on ray[=ADDRESS]` and `--on slurm[=OPTIONS]`: from the option to the nodes."""

from __future__ import annotations

from dataclasses import dataclass

from torchdoctor.clusters import slurm
from torchdoctor.clusters.fleet import Fleet, Node
from torchdoctor.clusters.tasks import Launches
from torchdoctor.pairs.measurement import ProgramLaunches
from torchdoctor.words.errors import UsageError

KINDS = ("ray", "slurm")


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The options of the command line."""

    kind: str
    options: str
    nodes: int  # 0: as many as the cluster, or the job, has
    gpus: int  # of each pair

    @classmethod
    def of(cls, on: str, nodes: int, gpus: int) -> Cluster:
        """Return what `--on` names; raise UsageError for another scheduler."""
        kind, _, options = on.partition("=")
        if kind not in KINDS:
            raise UsageError(f"--on takes ray[=ADDRESS] or slurm[=OPTIONS], not '{on}'.")
        return cls(kind=kind, options=options, nodes=nodes, gpus=gpus)

    def placed(self) -> int | None:
        """Run this command line on a node if it has to; return its exit code. None: go on here."""
        return slurm.run_in_a_job(self.options, self.gpus) if self.kind == "slurm" else None

    def fleet(self, launches: ProgramLaunches) -> Fleet:
        """Return the nodes that measure pairs of this program; close them at the end."""
        recorder = launches.recorder
        nodes: list[Node]
        if self.kind == "slurm":
            folder = recorder.folder / "tasks"
            folder.mkdir(mode=0o700, exist_ok=True)
            commands, doubts = slurm.nodes(self.options, self.nodes, self.gpus, folder)
            nodes = [*commands]
        else:
            from torchdoctor.clusters import ray_nodes

            found, doubts = ray_nodes.nodes(self.options, self.nodes, self.gpus)
            nodes = [*found]
        return Fleet(nodes, Launches.of(launches), doubts)
