"""Copy the next batch to the GPU while this one is computed, on a stream of its own.

## What it does
Where copies to the GPU hold up the step although they come from pinned memory, it gives a small
class around the loader that copies one batch ahead.

## Why it helps
A copy on the stream of the kernels waits for its turn among them. On a stream of its own it runs
beside them: GPUs have engines for copies that compute nothing.

## Risks
One more batch lies in the GPU's memory.

## Make it permanent
    class Prefetched:
        def __init__(self, loader, device):
            self.loader, self.device = loader, device

        def __iter__(self):
            stream, ready = torch.cuda.Stream(self.device), None
            for batch in self.loader:
                with torch.cuda.stream(stream):
                    moved = [x.to(self.device, non_blocking=True) for x in batch]
                if ready is not None:
                    yield ready
                torch.cuda.current_stream().wait_stream(stream)
                for x in moved:
                    x.record_stream(torch.cuda.current_stream())
                ready = moved
            if ready is not None:
                yield ready

## Sources
- PyTorch, CUDA semantics, "CUDA streams": https://docs.pytorch.org/docs/stable/notes/cuda.html
"""

from torchdoctor.queries.lookup import place, training_loader_location
from torchdoctor.queries.touched import part
from torchdoctor.schema import Evidence, FixSpec, Recording, Settings, TraceStatistics, fact, trace


def refuses(recording: Recording) -> Evidence | None:
    if not recording.has_gpu:
        return fact("model-on-cpu")
    steps = recording.steps
    traced = recording.trace
    pageable = traced.pageable_copies if traced is not None else None
    if pageable is None and steps is not None:
        pageable = steps.pageable_copies_per_step
    if pageable is None or pageable >= 1.0:
        return fact("pageable-copies")
    return None


def instruction(settings: Settings, recording: Recording) -> str:
    where = place(recording, training_loader_location(recording), "the training loader")
    return f"{where}  loader = Prefetched(loader, device)  # see torchdoctor explain {FIX.ident}"


def suits(trace: TraceStatistics) -> bool:
    return trace.has_device and (trace.pageable_copies or 0.0) < 1.0 and not trace.has_engine


FIX = FixSpec(
    name="copy the next batch ahead",
    treats=("memcpy-share",),
    keeps_results="within rounding",
    untried="what the loop does with a batch before it moves it stands in the source.",
    refuses=refuses,
    sentences={
        "model-on-cpu": "The model is on the CPU, where there is no copy to hide.",
        "pageable-copies": "Copies come from pageable memory, and cannot run beside anything: "
        "pin-memory first.",
    },
    touches=lambda recording: part(
        recording, "copies to the device", "copies to the device", "memcpy"
    ),
    suits=suits,
    instruction=instruction,
    offers=[(trace(has_device=True, pageable_copies=0.0), "Prefetched(loader, device)")],
    refusals=[
        ({}, "model-on-cpu"),
        (trace(has_device=True, pageable_copies=2.0), "pageable-copies"),
    ],
)
