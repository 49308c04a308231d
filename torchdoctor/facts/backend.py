"""Which way gradients go between GPUs: the backend of torch.distributed. Pure."""

from __future__ import annotations

from torchdoctor.words.program import ModelFacts
from torchdoctor.words.recording import Recording

_BY_HOST = ("gloo", "mpi")


def backend_by_host(recording: Recording) -> str | None:
    """The backend by which GPUs exchange gradients, where it sends through host memory; else None.

    Of a program that was watched, a model on a GPU must be wrapped to exchange any; the wrapper's
    own group says how, and where that is not known the default one.

    "cpu:gloo,cuda:nccl" sends tensors of GPUs by NCCL; "cuda:gloo" does not.
    """
    if not recording.has_gpu or not _several(recording):
        return None
    trace, models = recording.trace, _exchanging(recording)
    if recording.processes and not models:
        return None
    traced = (trace.backend if trace is not None else None) or ""
    if "nccl" in traced.lower():
        return None
    named = next((x.exchange_backend for x in models if x.exchange_backend), None)
    named = named or recording.main.backend or traced
    kinds = dict(part.split(":", 1) for part in named.lower().split(",") if ":" in part)
    used = kinds.get("cuda", "" if kinds else named.lower())
    return used if used in _BY_HOST else None


def _exchanging(recording: Recording) -> list[ModelFacts]:
    """Models on a GPU that are wrapped in what exchanges their gradients between processes."""
    return [
        model
        for process in recording.processes
        for model in process.models
        if model.device.startswith("cuda")
        and model.data_parallel in ("DistributedDataParallel", "FSDP")
    ]


def _several(recording: Recording) -> bool:
    """Whether there is somebody to send to; a job of one process sends nothing."""
    worlds = [process.world_size for process in recording.processes if process.world_size]
    trace = recording.trace
    if trace is not None and trace.world_size:
        worlds.append(trace.world_size)
    return max(worlds, default=1) > 1
