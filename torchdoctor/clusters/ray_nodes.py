"""Nodes of a Ray cluster: a pair is a Ray task that is bound to its node."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchdoctor.clusters.worker import SUFFIX
from torchdoctor.schema import Evidence, fact, message
from torchdoctor.schema.errors import UsageError
from torchdoctor.schema.figures import counted

_END_S = 40.0  # for a node to end its launches and its worker


def nodes(address: str, count: int, gpus: int) -> tuple[list[RayNode], list[Evidence]]:
    """Return a node for each pair at a time, this machine's first, and sentences for the report.

    `count`: 0 for all that have room. Raise UsageError where no cluster can be used.
    """
    ray = connected(address)
    this_node_id = ray.get_runtime_context().get_node_id()
    alive = [node for node in ray.nodes() if node["Alive"]]
    able = [node for node in alive if node["Resources"].get("GPU", 0) >= gpus and _cpus(node, gpus)]
    if not able:
        raise UsageError(
            f"No node of the Ray cluster has {counted(gpus, 'GPU')} and a CPU: see ray status."
        )
    able.sort(key=lambda node: node["NodeID"] != this_node_id)
    chosen = able[: count or None]
    doubts = [fact("fewer-nodes", asked=count, able=len(able))] if count > len(able) else []
    return [
        RayNode(
            ray=ray,
            name=f"{node['NodeManagerHostname']}-{node['NodeID'][:6]}",
            node_id=node["NodeID"],
            cpus=_cpus(node, gpus),
            gpus=gpus,
        )
        for node in chosen
    ], doubts


def _cpus(node: dict[str, Any], gpus: int) -> float:
    """Return the CPUs of a pair: all of the node's, or the share that its GPUs have of them."""
    resources = node["Resources"]
    cpus = float(resources.get("CPU", 0.0))
    return cpus * gpus / resources["GPU"] if gpus else cpus


def connected(address: str) -> Any:
    """Return ray, connected to the cluster there; raise UsageError where none can be used."""
    try:
        import ray
    except ImportError:
        raise UsageError(
            "Ray is not installed here: pip install 'torchdoctor[ray]', in the version of the "
            "cluster."
        ) from None
    if not ray.is_initialized():
        try:
            ray.init(address=address or "auto", log_to_driver=False, logging_level="error")
        except (ConnectionError, RuntimeError, ValueError) as error:
            reason = str(error).strip().partition("\n")[0].rstrip(".")
            raise UsageError(
                f"No Ray cluster answers ({reason}): start torchdoctor on a node of the cluster, "
                "for instance with ray job submit."
            ) from None
    return ray


@dataclass(kw_only=True)
class RayNode:
    """A node of the cluster, for one pair at a time."""

    ray: Any
    name: str
    node_id: str
    cpus: float
    gpus: int

    def begin(self, data: bytes) -> RunningTask:
        """Submit the task to this node alone."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        bound = NodeAffinitySchedulingStrategy(node_id=self.node_id, soft=False)
        task = self.ray.remote(run_worker).options(
            num_cpus=self.cpus,
            num_gpus=self.gpus,
            max_retries=0,
            scheduling_strategy=bound,
            name="torchdoctor-pair",
        )
        return RunningTask(self.ray, task.remote(data, os.environ.get("OMP_NUM_THREADS")))


class RunningTask:
    """A Ray task that measures a pair."""

    def __init__(self, ray: Any, reference: Any) -> None:
        self._ray = ray
        self._reference = reference

    def result(self) -> bytes | Evidence | None:
        """Return the result, or why there is none; None: the task has not ended."""
        if not self._ray.wait([self._reference], timeout=0)[0]:
            return None
        try:
            return bytes(self._ray.get(self._reference))
        except self._ray.exceptions.RayError as error:
            return message(reason_of(error))

    def cancel(self) -> None:
        """Interrupt the task, and wait until its launches have ended."""
        self._ray.cancel(self._reference)
        self._ray.wait([self._reference], timeout=_END_S)
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.cancel(self._reference, force=True)


def reason_of(error: Exception) -> str:
    """Return why a task of Ray failed: its kind and the last line of its text."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {(lines or ['no reason given'])[-1].rstrip('.')}."


def run_worker(data: bytes, threads: str | None) -> bytes:
    """Measure a pair in a process of its own, on the node that Ray chose; return its result.

    `threads`: OMP_NUM_THREADS as the observed program had it, for which Ray sets the task's CPUs.
    """
    variables = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    variables |= {"OMP_NUM_THREADS": threads} if threads is not None else {}
    with tempfile.TemporaryDirectory(prefix="torchdoctor-task-") as folder:
        file = Path(folder, "pair.task")
        file.write_bytes(data)
        popen = subprocess.Popen(
            [sys.executable, "-m", "torchdoctor.clusters.worker", str(file)],
            env=variables,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        try:
            _, text = popen.communicate()
        except BaseException:  # Ray raises KeyboardInterrupt for a task that is cancelled
            popen.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                popen.communicate(timeout=_END_S)
            popen.kill()
            raise
        result = Path(f"{file}{SUFFIX}")
        if not result.is_file():
            lines = text.decode(errors="replace").strip().splitlines()
            raise RuntimeError((lines or [f"the worker ended with {popen.returncode}"])[-1])
        return result.read_bytes()
