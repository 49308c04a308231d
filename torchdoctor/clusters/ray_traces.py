"""Trace files that the nodes of a Ray cluster read at the same time: each file is a task."""

from __future__ import annotations

import contextlib
import os
import pickle
import platform
from pathlib import Path
from typing import Any

from torchdoctor import __version__
from torchdoctor.clusters import ray_nodes
from torchdoctor.clusters.cluster import Cluster
from torchdoctor.schema.errors import NoTrace, UsageError
from torchdoctor.trace.ranks import RankTrace, Reader, read_rank


def reader_on(on: str) -> Reader:
    """Return what reads traces on the cluster that `--on` names, as `read_ranks` asks for it.

    Raise UsageError where no cluster can be used; the function raises it where a node cannot read.
    """
    cluster = Cluster.of(on, 0, 0)
    if cluster.kind != "ray":
        raise UsageError("diagnose --on takes ray[=ADDRESS]: inside a job of Slurm, leave it out.")
    ray = ray_nodes.connected(cluster.options)
    return lambda paths, timelines: _read(ray, paths, timelines)


def _read(ray: Any, paths: list[Path], timelines: bool) -> list[RankTrace | NoTrace]:
    task = ray.remote(read_there).options(scheduling_strategy="SPREAD", name="torchdoctor-trace")
    there = [path for path in paths if path.exists()]  # a link into nowhere is read here, and told
    sent = {path: task.remote(str(path), str(Path.cwd()), timelines, __version__) for path in there}
    read: dict[Path, RankTrace | NoTrace] = {}
    try:
        for path, reference in sent.items():
            answer = ray.get(reference)
            if isinstance(answer, str):
                raise UsageError(answer)
            read[path] = pickle.loads(answer)  # of our own task
    except ray.exceptions.RayError as error:
        raise UsageError(f"Ray could not read {path}: {ray_nodes.reason_of(error)}") from None
    finally:
        for reference in sent.values():
            ray.cancel(reference, force=True)  # nothing, for those that have ended
    return [read[path] if path in read else read_rank(path, timelines) for path in paths]


def read_there(path: str, cwd: str, timelines: bool, version: str) -> bytes | str:
    """Return the trace in a file, pickled; text: why this node cannot read it, a sentence."""
    if version != __version__:
        return (
            f"The node {platform.node()} has torchdoctor {__version__}, and here is {version}: "
            "install the same version on every node."
        )
    with contextlib.suppress(OSError):
        os.chdir(cwd)  # paths in the report stay as they were typed
    if not Path(path).exists():
        return (
            f"The node {platform.node()} does not see {path}: put the traces into a folder that "
            "all nodes share, or leave out --on."
        )
    # Arrays that come back as objects of Ray could not be written to.
    return pickle.dumps(read_rank(Path(path), timelines))
