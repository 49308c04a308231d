"""The program is compiled or a server, and its kernels are still launched one by one.

## What it means
Each launch costs the host microseconds. Where a compiler has already fused what it can, or a server
of language models computes the same step again and again, the launches that are left can be
captured once as a graph of CUDA or HIP, and replayed by one call.

## How it is measured
The trace shows code of torch.compile or a server (vLLM, SGLang, TensorRT-LLM, LMDeploy). The check
counts kernels that no graph launched, and the time in which the GPU waits for the host. Waits in
copies and synchronisation are left out.

## Not to be confused with
A program that is not compiled (many-small-kernels): torch.compile is first there.
"""

from torchdoctor.schema import CheckSpec, Recording, Symptom, Symptoms, fact, trace

_FEWEST = 50  # kernels of a step, as for many-small-kernels
_ENGINES = {"vllm": "vLLM", "sglang": "SGLang", "tensorrt_llm": "TensorRT-LLM"}


def _examine(recording: Recording) -> Symptoms:
    traced = recording.trace
    if traced is None or not traced.has_device or not traced.step_s or traced.unusual:
        return
    alone = (traced.kernels_per_step or 0.0) - (traced.graph_kernels_per_step or 0.0)
    if not (traced.compiled or traced.has_engine) or alone < _FEWEST:
        return
    shares = traced.shares
    blocked = ((traced.blocking_copy_s or 0.0) + (traced.sync_s or 0.0)) / traced.step_s
    driver = max((shares.runtime or 0.0) - blocked, 0.0)
    share = (shares.cpu or 0.0) + (shares.other or 0.0) + driver
    if share < CHECK.threshold:
        return
    runs_it = "compiled"
    if traced.has_engine:
        runs_it = "engine" if traced.engine else "server"
    evidence = fact(
        runs_it,
        share=share,
        engine=_ENGINES.get(traced.engine or "", traced.engine),
        alone=alone,
        kernels=traced.kernels_per_step,
    )
    yield Symptom(
        share=share,
        evidence=evidence,
        severity="high" if share >= _HIGH else "moderate",
    )


_HIGH = 0.3  # of the step, from where on the host is the limit
_ONE_BY_ONE = (
    "and {alone:.0f} of {kernels:.0f} kernels {a_step} are launched one by one: the {device} waits "
    "{share:.0%} of {each_step} for the host."
)
_STEP = {"has_device": True, "kernels_per_step": 400.0}
_WAITS = {"gpu": 0.5, "cpu": 0.2, "runtime": 0.1, "other": 0.2}
CHECK = CheckSpec(
    branch="cpu",
    threshold=0.15,
    unit="% of the step in which the GPU waits",
    source="XProf: launching is high from 15 % of the step on",
    sentences={
        "compiled": f"The model is compiled, {_ONE_BY_ONE}",
        "engine": f"{{engine}} runs the model, {_ONE_BY_ONE}",
        "server": f"A server of language models runs the model, {_ONE_BY_ONE}",
    },
    examine=_examine,
    fires=[
        trace(**_STEP, compiled=True, shares=_WAITS),
        trace(**_STEP, has_engine=True, engine="vllm", shares=_WAITS),
    ],
    quiet=[
        trace(**_STEP, shares=_WAITS),
        trace(**_STEP, compiled=True, graph_kernels_per_step=390.0, shares=_WAITS),
        trace(**_STEP, compiled=True, shares={"gpu": 0.95, "cpu": 0.05}),
    ],
)
