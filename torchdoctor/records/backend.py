"""Which way gradients go between GPUs: the backend of torch.distributed. Pure."""

from __future__ import annotations

from torchdoctor.records.recording import Recording

_BY_HOST = ("gloo", "mpi")


def backend_by_host(recording: Recording) -> str | None:
    """The backend of a training on several GPUs, where it sends through host memory; else None.

    "cpu:gloo,cuda:nccl" sends tensors of GPUs by NCCL; "cuda:gloo" does not.
    """
    if not recording.has_gpu or not _several(recording):
        return None
    trace = recording.trace
    named = recording.main.backend or (trace.backend if trace is not None else None) or ""
    kinds = dict(part.split(":", 1) for part in named.lower().split(",") if ":" in part)
    used = kinds.get("cuda", "" if kinds else named.lower())
    return used if used in _BY_HOST else None


def _several(recording: Recording) -> bool:
    """Whether there is somebody to send to; a job of one process sends nothing."""
    worlds = [process.world_size for process in recording.processes if process.world_size]
    trace = recording.trace
    if trace is not None and trace.world_size:
        worlds.append(trace.world_size)
    return max(worlds, default=1) > 1
