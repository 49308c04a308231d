"""Replay the launches of a step as one graph (CUDA or HIP graphs).

## What it does
It gives the setting by which a compiled model, or a server of language models, captures its
launches once and replays them by one call. Nothing is tried: sizes are the program's.

## Why it helps
A replayed graph costs the host one call, however many kernels it holds, so the GPU does not wait.

## Risks
A graph is of fixed sizes: each size that occurs is captured by itself and takes memory and time at
the start. What is written outside of its inputs in between is not seen by it.

## Make it permanent
    model = torch.compile(model, mode="reduce-overhead")   # CUDA or HIP graphs; fixed input sizes
    torch.compiler.cudagraph_mark_step_begin()             # before each call whose outputs are kept

## Sources
- PyTorch, CUDAGraph Trees: https://docs.pytorch.org/docs/stable/torch.compiler_cudagraph_trees.html
- vLLM, CUDA Graphs: https://docs.vllm.ai/en/stable/design/cuda_graphs/
- SGLang, server arguments: https://docs.sglang.ai/advanced_features/server_arguments.html
- TensorRT-LLM: https://nvidia.github.io/TensorRT-LLM/llm-api/reference/DecodeCudaGraphConfig.html
"""

from torchdoctor.queries.touched import launches
from torchdoctor.schema import Evidence, FixSpec, Recording, fact, trace

_VLLM = """\
# vLLM: leave out --enforce-eager (enforce_eager=False), and capture the batch sizes that run
vllm serve MODEL --compilation-config \\
  '{"cudagraph_mode": "FULL_AND_PIECEWISE", "cudagraph_capture_sizes": [1, 2, 4, 8, 16, 32, 64]}'"""
_SGLANG = """\
# SGLang: leave out --disable-cuda-graph, and capture batches as large as those that run
python -m sglang.launch_server --model-path MODEL --cuda-graph-max-bs 64"""
_TENSORRT = """\
# TensorRT-LLM: batches between two sizes are rounded up with enable_padding
from tensorrt_llm.llmapi import CudaGraphConfig
llm = LLM(model=..., cuda_graph_config=CudaGraphConfig(max_batch_size=64, enable_padding=True))"""
_LMDEPLOY = """\
# LMDeploy: graphs are on unless eager_mode is
pipe = pipeline(MODEL, backend_config=PytorchEngineConfig(eager_mode=False))"""
_ENGINES = {"vllm": _VLLM, "sglang": _SGLANG, "tensorrt_llm": _TENSORRT, "lmdeploy": _LMDEPLOY}


def refuses(recording: Recording) -> Evidence | None:
    if not recording.has_gpu:
        return fact("no-gpu")
    traced = recording.trace
    compiled = any(model.compiled for model in recording.main.models)
    if not (compiled or (traced is not None and (traced.compiled or traced.has_engine))):
        return fact("not-compiled")
    return None


def advice(recording: Recording) -> str | None:
    traced = recording.trace
    if traced is None or not traced.has_engine:
        return FIX.permanent_form
    return _ENGINES.get(traced.engine or "", "\n".join([_VLLM, _SGLANG, _TENSORRT]))


FIX: FixSpec = FixSpec(
    name="launches as a graph",
    treats=("launches-outside-graphs",),
    keeps_results="exactly",
    untried="which sizes are worth a graph, and where its model is compiled, the program knows.",
    touches=launches,
    refuses=refuses,
    sentences={
        "no-gpu": "Graphs of launches are a GPU's, and the program does not compute on one.",
        "not-compiled": "It is not compiled: torch-compile is first, and tries "
        'mode="reduce-overhead".',
    },
    suits=lambda trace: trace.compiled or trace.has_engine,
    platforms=("cuda", "rocm"),
    advice=advice,
    instruction=lambda settings, recording: advice(recording) or "",
    offers=[
        (trace(has_device=True, compiled=True, platform="cuda"), "reduce-overhead"),
        (trace(has_device=True, has_engine=True, engine="vllm", platform="rocm"), "enforce_eager"),
        (trace(has_device=True, has_engine=True, platform="cuda"), "--cuda-graph-max-bs"),
    ],
    refusals=[({}, "no-gpu"), (trace(has_device=True, platform="cuda"), "not-compiled")],
)
