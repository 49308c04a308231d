"""Compile the model: fused kernels and less Python (torch.compile).

What it does
------------
Calls `module.compile()` on each root module that trains. At its first forward and backward,
TorchDynamo captures the operators that the Python code calls, and TorchInductor generates fused
kernels for them (Triton on a GPU, C++ on a CPU). The object stays the same module of the same
class. On a GPU, `mode="reduce-overhead"`, which replays the step as a CUDA graph, is tried too.

Why it helps
------------
Chains of pointwise operators become one kernel that reads and writes memory once, and Python and
the dispatcher are no longer between any two operators. It pays most where a step consists of many
small operators, and least where a few large matrix products take the time.

Risks
-----
Compilation takes from seconds to minutes, once per process and again for shapes that it has not
seen: the report counts it as a cost of its own and says after how many steps it has paid for
itself. Results differ by rounding, and dropout draws other numbers than in eager mode. Code that
depends on Python side effects may behave differently; what cannot be captured breaks the graph
and runs as before. On the CPU a C++ compiler is needed, on the GPU Triton. A small model on a CPU
can become slower.

Make it permanent
-----------------
    model.compile()                            # in place; or mode="reduce-overhead" on a GPU
    model = torch.compile(model)               # where the model is a plain nn.Sequential

Sources
-------
- PyTorch documentation, torch.compiler: https://docs.pytorch.org/docs/stable/torch.compiler.html
- PyTorch documentation, torch.nn.Module.compile:
  https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html
- Ansel et al., "PyTorch 2: Faster Machine Learning Through Dynamic Python Bytecode
  Transformation and Graph Compilation", ASPLOS 2024: https://doi.org/10.1145/3620665.3640366
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchdoctor.edits import Edit
    from torchdoctor.records import ModelFacts, Recording, TraceStatistics

TREATS = (
    "unfused-attention",
    "many-small-kernels",
    "unfused-pointwise",
    "python-overhead",
    "cpu-execution",
    "gpu-utilization",
    "compute",
)
KEEPS_RESULTS = "within rounding"
WHEN = "launch"
SETUP_S = 40.0  # about what compiling takes, so that cheaper trials come first

_COMPILERS = ("c++", "g++", "clang++", "cl", "icpx")
_REPORT_AT = (2, 6)  # counters are read at these backward passes: compiled, and once settled


def refuses(recording: Recording) -> str | None:
    """Why compiling cannot apply or cannot gain."""
    from torchdoctor.records.lookup import training_models

    models = training_models(recording)
    if recording.processes and not models:
        return "No forward pass of a module in training mode was seen to compile."
    if any(m.compiled for m in models):
        return "The model is already compiled."
    if any(m.data_parallel == "DataParallel" for m in models):
        return "The model is wrapped in DataParallel, which copies it at each step."
    if models and all(_mostly_recurrent(m) for m in models):
        return "The model is recurrent, and torch.compile leaves nn.RNN, nn.LSTM and nn.GRU as is."
    if not recording.has_gpu and not _has_cpp_compiler():
        return "There is no C++ compiler on this machine, which torch.compile needs on a CPU."
    return None


def _mostly_recurrent(model: ModelFacts) -> bool:
    return bool(model.recurrent) and not model.conv2d and not model.attention and model.linear <= 2


def _has_cpp_compiler() -> bool:
    import os
    import shutil

    named = os.environ.get("CXX")
    return any(shutil.which(name) for name in ((named,) if named else _COMPILERS))


def suits(trace: TraceStatistics) -> bool:
    """Where nothing was compiled yet."""
    return not any(
        "triton" in x.name.lower() or "CompiledFunction" in x.name for x in trace.operators
    )


def settings(recording: Recording) -> list[dict[str, Any]]:
    """The default mode; with a GPU, CUDA graphs too."""
    modes = ["default", "reduce-overhead"] if recording.has_gpu else ["default"]
    return [{"mode": mode} for mode in modes]


def apply(torch: Any, settings: dict[str, Any], program: Any) -> None:
    """Compile each root module in place, and report what compiling cost."""
    _check(torch, program)
    mode = settings.get("mode", "default")
    counted: list[int] = [0]

    def compile_module(module: Any) -> None:
        if not any(parameter.requires_grad for parameter in module.parameters()):
            return
        if any(type(m).__name__ == "DataParallel" for m in module.modules()):
            program.refuse("The model is wrapped in DataParallel, which copies it at each step.")
        if any(p.device.type == "cuda" for p in module.parameters()) and not _has_triton():
            program.refuse("Triton is not installed, which torch.compile needs on a GPU.")
        _compile_in_place(torch, module, {} if mode == "default" else {"mode": mode})
        program.applied(mode=mode)

    def report() -> None:
        counted[0] += 1
        if counted[0] in _REPORT_AT:
            program.applied(**_cost(torch))

    program.set_reason("No root module with trainable parameters came by.")
    program.on_model(compile_module)
    program.before_backward(report)


def _compile_in_place(torch: Any, module: Any, options: dict[str, Any]) -> None:
    forward = getattr(type(module).forward, "__module__", None) or ""
    if not forward.startswith("torch."):
        module.compile(**options)
        return

    # Dynamo begins at frames outside torch alone: a plain nn.Sequential would stay as it is.
    def call(*args: Any, **kwargs: Any) -> Any:
        return module._call_impl(*args, **kwargs)

    module._compiled_call_impl = torch.compile(call, **options)


def _check(torch: Any, program: Any) -> None:
    if not hasattr(torch.nn.Module, "compile"):
        program.refuse("This torch has no nn.Module.compile.")
    try:
        from torch._dynamo.eval_frame import check_if_dynamo_supported
    except ImportError:
        return
    try:
        check_if_dynamo_supported()
    except RuntimeError as error:
        program.refuse(f"torch.compile does not work here: {error}")


def _has_triton() -> bool:
    from importlib.util import find_spec

    return find_spec("triton") is not None


def _cost(torch: Any) -> dict[str, Any]:
    """Seconds of compilation, graphs and graph breaks so far, as far as this torch tells."""
    found: dict[str, Any] = {}
    try:
        counters = torch._dynamo.utils.counters
        found["graph_breaks"] = sum(counters["graph_break"].values())
        found["graphs"] = int(counters["stats"]["unique_graphs"])
        spent = torch._dynamo.utils.calculate_time_spent()
        found["compile_s"] = round(float(spent["total_wall_time"]), 3)
    except (AttributeError, KeyError, TypeError):
        pass
    return found


def instruction(settings: dict[str, Any], recording: Recording) -> str:
    """The call to add."""
    from torchdoctor.edits.trainers import trainer_call
    from torchdoctor.records.lookup import training_models

    asked = trainer_call(recording, {"compile": True})
    if asked is not None:
        return asked
    mode = settings.get("mode", "default")
    option = "" if mode == "default" else f'mode="{mode}"'
    call = f"model.compile({option})"
    if any(m.cls.startswith("torch.") for m in training_models(recording)):
        # nn.Sequential and its like: compile() in place leaves them as they are.
        call = f"model = torch.compile({', '.join(filter(None, ['model', option]))})"
    return f"{call}  # before the training loop, after moving the model to its device"


def edits(settings: dict[str, Any], recording: Recording) -> list[Edit]:
    """The same as a source edit; empty where the model has no name outside the loop."""
    from torchdoctor.edits.training import before_training
    from torchdoctor.records.lookup import training_models

    mode = settings.get("mode", "default")
    option = "" if mode == "default" else f'mode="{mode}"'
    statement = f"{{model}}.compile({option})"
    if any(m.cls.startswith("torch.") for m in training_models(recording)):
        statement = f"{{model}} = torch.compile({', '.join(filter(None, ['{model}', option]))})"
    return before_training(recording, statement)


EXAMPLE = """
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        return torch.nn.functional.gelu(self.linear(x)) * 2


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(8, 4))
for (x,) in torch.utils.data.DataLoader(data, batch_size=4):
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print("compiled:", model._compiled_call_impl is not None, "still a", type(model).__name__)
import torch._dynamo
print("graphs:", torch._dynamo.utils.counters["stats"]["unique_graphs"])
"""
EXAMPLE_SETTINGS = {"mode": "default"}
EXAMPLE_WITHOUT = """compiled: False still a Net
graphs: 0"""
EXAMPLE_WITH = """compiled: True still a Net
graphs: 1"""
