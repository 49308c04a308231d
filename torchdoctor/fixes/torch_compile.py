"""Compile the model: fused kernels and less Python (torch.compile).

## What it does
Calls `module.compile()` on each root module that trains. TorchDynamo captures its operators at the
first forward and backward, and TorchInductor generates fused kernels (Triton on a GPU, C++ on a
CPU). Further settings are tried if they could help:

- `mode="reduce-overhead"` on a GPU with inputs of one size: the step is replayed as a CUDA graph;
- `mode="max-autotune-no-cudagraphs"` on a GPU whose matrix products take a good part of the step;
- `dynamic=True` if the sizes of the inputs vary: one compilation for all sizes;
- the repeated blocks alone (a transformer's layers), from torch 2.5 on: compiling takes less time.

## Why it helps
Chains of pointwise operators become one kernel that reads and writes memory once, and neither
Python nor the dispatcher stands between two operators. It pays most if a step consists of many
small operators, and least if a few large matrix products take the time.

## Risks
Compilation takes seconds to minutes, once per process and again for new shapes: the report says
how long, where graphs broke, and after how many steps it has paid for itself. Results differ by
rounding, and dropout draws other numbers. Code with Python side effects may behave differently. On
the CPU a C++ compiler is needed, on the GPU Triton. A small model on a CPU can become slower.

## Make it permanent
    model.compile()                            # in place; or mode="reduce-overhead" on a GPU
    # or, for a plain nn.Sequential, whose state dict stays:
    # model.forward = torch.compile(model.forward)
    # or the repeated blocks alone: for block in blocks: block.compile()
    # or, where sizes vary (torch._dynamo.mark_dynamic(x, 0) does it for one input):
    # model.compile(dynamic=True)

## Sources
- PyTorch documentation, torch.compiler: https://docs.pytorch.org/docs/stable/torch.compiler.html
- What timing kernels takes: https://github.com/pytorch/pytorch/pull/107983
"""

import contextlib
import functools
import os
import shutil
import threading
from importlib.util import find_spec
from typing import Any

from torchdoctor.edits import Edit
from torchdoctor.edits.calls import trainer_call
from torchdoctor.edits.training import before_training
from torchdoctor.queries.lookup import training_models
from torchdoctor.queries.touched import model
from torchdoctor.schema import (
    Evidence,
    Example,
    FixSpec,
    Recording,
    Settings,
    TraceStatistics,
    fact,
)

_INFERENCE = """\
# reduce-overhead replays the launches of a call as one graph; it wants inputs of fixed sizes
model = torch.compile(model, mode="reduce-overhead")
with torch.inference_mode():
    output = model(x)"""
_COMPILERS = ("c++", "g++", "clang++", "cl", "icpx")
_COMPILES_BLOCKS_AT_ONCE = (2, 5)  # the first torch with one compilation for all of them
_FEWEST_BLOCKS = 4  # fewer are compiled with the rest in about the same time
# Of 1,000 to 5,000 operators a step, on two cores, compiling took 21 to 42 s.
_SETUP_S = 15.0
_OPERATOR_S = 0.0055
_USUAL_CALLS = 2600
_EVAL_GRAPH = 0.4  # it has no backward: three of them and one for training took 55 s
# For each product of other sizes: Inductor's own lines "AUTOTUNE takes" say 5.2 s in PyTorch's pull
# request 107983, 9.0 s in 96729, and 9.6 s ("benchmarking" and "precompiling") in vLLM's documents.
_TUNED_PRODUCT_S = 7.5
_MANY_SIZES = 3  # two are often those of training and of evaluation, or of the last batch
_MATRIX_SHARE = 0.3  # of the step, from which on kernels of products are worth timing


def refuses(recording: Recording) -> Evidence | None:
    models = training_models(recording)
    if recording.processes and not models:
        return fact("no-forward-pass")
    if any(m.compiled for m in models):
        return fact("compiled")
    if any(m.data_parallel == "DataParallel" for m in models):
        return fact("data-parallel")
    left_as_is = (m.recurrent and not (m.conv2d or m.attention or m.linear > 2) for m in models)
    if models and all(left_as_is):
        return fact("recurrent")
    named = os.environ.get("CXX")
    if not (recording.has_gpu or any(map(shutil.which, [named] if named else _COMPILERS))):
        return fact("no-cpp-compiler")
    return None


def suits(trace: TraceStatistics) -> bool:
    names = " ".join(operator.name for operator in trace.operators)
    compiled = "triton" in names.lower() or "CompiledFunction" in names
    # An engine compiles its model by itself.
    return not (compiled or trace.compilation or trace.has_engine)


def settings(recording: Recording) -> list[Settings]:
    """Return the default mode, and what the model, its inputs and the device give reason for."""
    models = training_models(recording)
    varies = any(len(model.input_tensors) >= _MANY_SIZES for model in models)
    block = max((m for m in models), key=lambda m: m.repeated_blocks, default=None)
    variants: list[Settings] = [{"mode": "default"}]
    if varies:
        variants.append({"mode": "default", "dynamic": True})
    elif recording.has_gpu:
        variants.append({"mode": "reduce-overhead"})
    at_once = (recording.torch_release or _COMPILES_BLOCKS_AT_ONCE) >= _COMPILES_BLOCKS_AT_ONCE
    if at_once and block is not None and block.repeated_blocks >= _FEWEST_BLOCKS:
        variants.append({"mode": "default", "blocks": block.repeated_block})
    if recording.has_gpu and _matrix_share(recording) >= _MATRIX_SHARE:
        variants.append({"mode": "max-autotune-no-cudagraphs"})
    return variants


def more_setup_s(settings: Settings, recording: Recording) -> float:
    """Return what operators add, and evaluation, which compiles its own graphs, for some sizes.

    "max-autotune" times some twenty kernels for each product of the trace beside that.
    """
    calls = (recording.trace and recording.trace.operator_calls_per_step) or _USUAL_CALLS
    operators_s = _OPERATOR_S * calls
    sizes = max((m.eval_sizes for m in training_models(recording)), default=0)
    compiling_s = operators_s + _EVAL_GRAPH * sizes * (_SETUP_S + operators_s)
    autotunes = str(settings.get("mode")).startswith("max-autotune")
    work = recording.trace.matrix_work if recording.trace else None
    return compiling_s + (_TUNED_PRODUCT_S * work.kinds if autotunes and work else 0.0)


def _matrix_share(recording: Recording) -> float:
    trace = recording.trace
    if trace is None or trace.matrix_work is None or not trace.step_s:
        return 0.0
    return trace.matrix_work.device_s / trace.step_s


def apply(torch: Any, settings: Settings, program: Any) -> None:
    from torch._dynamo.eval_frame import check_if_dynamo_supported

    try:
        check_if_dynamo_supported()
    except RuntimeError as error:
        program.refuse("does-not-work-here", message=str(error))
    options, name = _options(settings), settings.get("blocks")
    log = program.compile_log()

    def compile_module(module: Any) -> None:
        parameters = list(module.parameters())
        modules = list(module.modules())
        if not any(parameter.requires_grad for parameter in parameters):
            return
        if any(type(m).__name__ == "DataParallel" for m in modules):
            program.refuse("data-parallel")
        if any(p.device.type == "cuda" for p in parameters) and find_spec("triton") is None:
            program.refuse("no-triton")
        chosen = [m for m in modules if type(m).__name__ == name] if name else [module]
        if len(chosen) > 1 and not _inlines(torch):
            program.refuse("compiles-each-block")
        if parameters[0].device.type == "cpu":
            _prepare_once()
        for part in chosen:
            _compile_in_place(torch, part, options, program)
            program.applied(**settings)

    def report() -> None:
        if log.changed():
            program.details.update(log.details())
        elif program.state == "applied":
            program.details["passes"] = log.passes

    program.set_reason("no-such-block" if name else "no-trainable-module")
    program.on_model(compile_module)
    program.at("backward", report)


def _options(settings: Settings) -> Settings:
    """Return the arguments of `compile`."""
    asked = {"mode": settings.get("mode"), "dynamic": settings.get("dynamic")}
    return {name: value for name, value in asked.items() if value and value != "default"}


@functools.cache
def _prepare_once() -> None:
    """Have TorchInductor test the best vector instructions of a CPU alone, and keep its header."""
    try:
        from torch._inductor import codecache, config, cpu_vec_isa

        # 4 s to make, in a folder where a launch's files are thrown away.
        codecache._HEADER_DIR = os.path.join(codecache.cache_dir(), "headers")
        codecache._HEADER_LOCK_DIR = os.path.join(codecache._HEADER_DIR, "locks")
        # It would compile a test for each kind, 2 s, and take the first that builds.
        if config.cpp.simdlen is None and "ATEN_CPU_CAPABILITY" not in os.environ:
            kinds, has = cpu_vec_isa.supported_vec_isa_list, {*cpu_vec_isa.x86_isa_checker()}
            kinds[:] = [next(kind for kind in kinds if {*str(kind).split()} <= has and kind)]
        # Begun now, it is made while the model is traced.
        threading.Thread(target=_make_header, args=(codecache,), daemon=True).start()
    except (ImportError, AttributeError, StopIteration):
        return  # another torch, another processor


def _make_header(codecache: Any) -> None:
    with contextlib.suppress(Exception):  # another torch; what is wrong is said of a real kernel
        # It makes the header of vector code, and builds the kernel only once that is called for.
        codecache.CppPythonBindingsCodeCache.load_pybinding_async([], "// at::vec::")


def _inlines(torch: Any) -> bool:
    """Return True where a graph holds what modules compute, and not modules: from torch 2.5 on."""
    return bool(getattr(torch._dynamo.config, "inline_inbuilt_nn_modules", False))


def _compile_in_place(torch: Any, module: Any, options: dict[str, Any], program: Any) -> None:
    forward = getattr(type(module).forward, "__module__", None) or ""
    if not forward.startswith("torch."):
        module.compile(**options)
        return

    if not _inlines(torch):
        # Within a graph the module would call itself as a whole, and so the graph, without end.
        module.forward = torch.compile(module.forward, **options)
        return

    # Dynamo begins at frames outside torch alone: a plain nn.Sequential would stay as it is.
    def call(*args: Any, **kwargs: Any) -> Any:
        return module._call_impl(*args, **kwargs)

    module._compiled_call_impl = torch.compile(program.compiled_with_it(call), **options)


def instruction(settings: Settings, recording: Recording) -> str:
    if (asked := trainer_call(recording, {"compile": True})) is not None:
        return asked
    where = "  # before the training loop, after moving the model to its device"
    first, *rest = _statement(settings, recording, "model", "block").splitlines()
    return "\n".join([first + where, *rest])


def _statement(settings: Settings, recording: Recording, model: str, block: str) -> str:
    """Return what compiles the model of this name; `block` goes through its repeated blocks."""
    written = [f"{name}={value!r}" for name, value in _options(settings).items()]
    options = ", ".join(written).replace("'", '"')
    if settings.get("blocks"):
        return (
            f"for {block} in {model}.modules():\n"
            f'    if type({block}).__name__ == "{settings["blocks"]}":\n'
            f"        {block}.compile({options})"
        )
    if not any(m.cls.startswith("torch.") for m in training_models(recording)):
        return f"{model}.compile({options})"
    # nn.Sequential and its like stay as they are with compile() in place, and
    # `model = torch.compile(model)` would put "_orig_mod." before every name in a checkpoint.
    arguments = ", ".join([f"{model}.forward", *written]).replace("'", '"')
    return f"{model}.forward = torch.compile({arguments})"


def edits(settings: Settings, recording: Recording) -> list[Edit]:
    return before_training(recording, _statement(settings, recording, "{model}", "repeated_block"))


FIX: FixSpec = FixSpec(
    name="compiled model",
    also_known_as=("fuse-pointwise",),
    treats=(
        "unfused-attention",
        "many-small-kernels",
        "unfused-pointwise",
        "python-overhead",
        "cpu-execution",
        "gpu-utilization",
        "compute",
    ),
    keeps_results="within rounding",
    phases=("forward_s", "backward_s"),
    p_helps=0.5,  # gained in 6 of 12 programs of benchmarks/logs
    setup_s=_SETUP_S,
    more_setup_s=more_setup_s,
    touches=model,
    refuses=refuses,
    sentences={
        "no-forward-pass": "No forward pass of a module was seen to compile.",
        "compiled": "The model is already compiled.",
        "data-parallel": "The model is wrapped in DataParallel, which copies it at each step.",
        "recurrent": "The model is recurrent, and torch.compile leaves nn.RNN, nn.LSTM and nn.GRU "
        "as is.",
        "no-cpp-compiler": "There is no C++ compiler on this machine, which torch.compile needs on "
        "a CPU.",
        "does-not-work-here": "torch.compile does not work here: {message}",
        "no-such-block": "No such block was seen.",
        "no-trainable-module": "No root module with trainable parameters was seen.",
        "no-triton": "Triton is not installed, which torch.compile needs on a GPU.",
        "compiles-each-block": "This torch compiles each block by itself: it needs 2.5.",
    },
    settings=settings,
    suits=suits,
    platforms=("cuda", "rocm", "xpu"),
    advice=lambda recording: (
        _INFERENCE if recording.trace and recording.trace.trains is False else FIX.permanent_form
    ),
    apply=apply,
    instruction=instruction,
    edits=edits,
    example=Example(
        code="""
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(8, 4))
for (x,) in torch.utils.data.DataLoader(data, batch_size=4):
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print("still a", type(model).__name__)
import torch._dynamo
print("graphs:", torch._dynamo.utils.counters["stats"]["unique_graphs"])
""",
        settings={"mode": "default"},
        without="still a Linear\ngraphs: 0",
        with_fix="still a Linear\ngraphs: 1",
    ),
)
