"""What a trace says of its job: the GPUs that it used and the torch.distributed backend."""

from typing import Any

from torchdoctor.trace.columns import Trace
from torchdoctor.trace.timeline import Timeline, host_collectives
from torchdoctor.words import Gpu
from torchdoctor.words.intervals import subtract


def gpus(trace: Trace, platform: str | None) -> list[Gpu]:
    """Return each device that was used and described, if only as those that are all alike."""
    properties = trace.metadata.get("deviceProperties")
    described = list(map(dictionary, properties if isinstance(properties, list) else []))
    alike = {(known.get("name"), known.get("totalGlobalMem")) for known in described}
    own = {whole_number(known.get("id")): known for known in described}
    used_gpus = []
    for index in sorted(set(trace.device["device"].tolist()) - {-1}):
        known = own.get(index) or (described[0] if len(alike) == 1 else {})
        major, minor = (whole_number(known.get(k)) for k in ("computeMajor", "computeMinor"))
        # Others number their devices otherwise than CUDA does.
        capability = None if major is None or platform == "rocm" else f"{major}.{minor or 0}"
        if known:
            used_gpus.append(
                Gpu(
                    index=index,
                    name=text(known.get("name")) or ("AMD GPU" if platform == "rocm" else "GPU"),
                    memory_bytes=whole_number(known.get("totalGlobalMem")),
                    compute_capability=capability,
                )
            )
    return used_gpus


def dictionary(value: Any) -> dict[str, Any]:
    """Return `value`, or an empty dictionary if it is none."""
    return value if isinstance(value, dict) else {}


def whole_number(value: Any) -> int | None:
    """Return `value`, or None if it is no whole number."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def text(value: Any) -> str | None:
    """Return `value`, or None if it is no text, or an empty one."""
    return value if isinstance(value, str) and value else None


def backend_of(trace: Trace, timeline: Timeline) -> dict[str, Any]:
    """Return fields of `TraceStatistics`; empty if the trace names no distributed job."""
    information = dictionary(trace.metadata.get("distributedInfo"))
    if not information:
        return {}
    world_size = whole_number(information.get("world_size")) or 0
    fields: dict[str, Any] = {"backend": text(information.get("backend"))}
    fields["world_size"] = world_size if world_size > 0 else None
    on_host = host_collectives(trace)
    if trace.has_device and len(on_host):
        steps = timeline.steps
        not_hidden = subtract(on_host, timeline.branches["gpu"])
        spent = not_hidden.covered(steps.start, steps.end).sum()
        fields["host_collective_s"] = float(spent) / len(steps) / 1e9
    return fields
