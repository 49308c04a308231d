"""Infer with Linear layers in 8 bits, on a CPU.

## What it does
Rounds the weights of the Linear layers to int8 once, and what they multiply at each call (dynamic
quantization). The float32 model stays beside them for as long as it is tried.

## Why it helps
CPUs with VNNI instructions multiply four pairs of int8 in place of one of float32, and the weights
take a quarter of the memory.

## Risks
Outputs differ in the second or third digit, and close decisions turn: the share that stays the
same is measured. One scale is taken for all rows of a call, so a row depends on its batch a little.
It is refused in training, where another module has a layer's weight too or a layer has hooks, and
where the weights are stored: they would be those in 8 bits.

On one core with VNNI, 4 blocks of two Linear layers, 512 and 2048 wide, were 5.5x as fast for 64
rows (medians of 25 calls in turns; again: 5.8x) and 3.8x for one (again: 3.4x); small layers may
get slower. torch calls its own quantization deprecated. Its successor torchao was 2.1x as fast for
64 rows and 0.72x for one, and turned a third as many decisions.

## Make it permanent
    torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, inplace=True)

    # with torchao:
    import torchao.quantization
    scheme = torchao.quantization.Int8DynamicActivationInt8WeightConfig()
    torchao.quantization.quantize_(model.eval(), scheme)

## Sources
- PyTorch, quantize_dynamic:
  https://docs.pytorch.org/docs/stable/generated/torch.ao.quantization.quantize_dynamic.html
- torchao, quantization: https://docs.pytorch.org/ao/stable/api_reference/api_ref_quantization.html
"""

import copy
import re
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchdoctor.edits import Edit
from torchdoctor.edits.training import before_training
from torchdoctor.fixes._parts import asked_once, infers_elsewhere
from torchdoctor.queries.lookup import training_models
from torchdoctor.queries.touched import calls
from torchdoctor.schema import (
    Evidence,
    Example,
    FixSpec,
    Location,
    ModelFacts,
    Recording,
    Settings,
    Touches,
    fact,
    process,
)

_LINEAR = re.compile(r"^aten::(?:addmm|mm|linear)$|_linear")
_WITH_BIASES = re.compile(rf"{_LINEAR.pattern}|^aten::copy_$")  # addmm copies them first
_LEAST = 0.2  # of the step
_QUANTIZE = "torch.ao.quantization.quantize_dynamic({model}, {{torch.nn.Linear}}, inplace=True)"
_STORES = re.compile(r"\bstate_dict\(|\bsave_pretrained\(|\btorch\.save\(\s*model\b")


def _share(recording: Recording, names: re.Pattern[str]) -> float | None:
    """Return the share of the step in operators of these names; None: it was not measured."""
    trace = recording.trace
    if trace is None or not trace.step_s or not trace.operators:
        return None
    spent_s = [operator.self_s for operator in trace.operators if names.search(operator.name)]
    return min(sum(spent_s) / trace.step_s, 1.0)


def _with_layers(recording: Recording) -> list[ModelFacts]:
    return [model for model in training_models(recording) if model.linear]


def refuses(recording: Recording) -> Evidence | None:
    return infers_elsewhere(recording) or _unfit(recording) or _unworthy(recording)


def _unfit(recording: Recording) -> Evidence | None:
    """Return why the models cannot compute in 8 bits; None: they can."""
    models = _with_layers(recording)
    if not models or any(model.dtypes != ["float32"] for model in models):
        return fact("no-float32-linear")
    if any(model.compiled for model in models):
        return fact("compiled-already")
    if not all(model.eval_forwards for model in models):
        return fact("training-mode-alone")
    if any(model.autocast_forwards for model in models):
        return fact("autocast-already")
    if stored := _stored(recording):
        return fact("weights-stored", file=stored)
    return None


def _unworthy(recording: Recording) -> Evidence | None:
    """Return why it would gain nothing that counts; None: it may."""
    share = _share(recording, _LINEAR)
    if share is None:
        # Without its trace, a model of Linear layers alone is taken to spend its time in them.
        if any(model.conv2d or model.recurrent for model in training_models(recording)):
            return fact("linear-unmeasured")
        return None
    if share < _LEAST:
        return fact("linear-hardly-matters", share=share)
    return None


@asked_once
def _stored(recording: Recording) -> str | None:
    """Return the name of the program's file that stores or copies a model's weights; or None."""
    holders = [model.holder.location.file for model in _with_layers(recording) if model.holder]
    for file in dict.fromkeys([recording.workload.script, *holders]):
        try:
            source = Path(file or "").read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        if _STORES.search(source):
            return Path(file or "").name
    return None


def touches(recording: Recording) -> Touches:
    share = _share(recording, _WITH_BIASES)
    if share is None or recording.steps is None:
        return None
    label = "products of Linear layers, and copies"
    return calls(recording, share * recording.steps.mean_s, label)


def _by_torch(torch: Any) -> Callable[[Any], Any] | None:
    """Return what makes a layer's forward in 8 bits; None: torch has it no more.

    It is what `quantize_dynamic` makes of a layer. No copies of layers are left behind, which would
    be taken for models.
    """
    try:
        in_8_bits = torch.ao.nn.quantized.dynamic.Linear
        scheme = torch.ao.quantization.default_dynamic_qconfig
    except (AttributeError, ImportError):
        return None

    def forward_of(layer: Any) -> Any:
        layer.qconfig = scheme
        try:
            return in_8_bits.from_float(layer).forward
        finally:
            del layer.qconfig

    return forward_of


def _by_torchao(torch: Any) -> Callable[[Any], Any] | None:
    """Return the like of `_by_torch`; None: torchao is not installed."""
    try:
        import torchao.quantization as torchao
    except ImportError:
        return None

    def forward_of(layer: Any) -> Any:
        parent = torch.nn.Sequential(copy.deepcopy(layer)).eval()
        torchao.quantize_(parent, torchao.Int8DynamicActivationInt8WeightConfig())
        weight, bias = parent[0].weight, layer.bias
        return lambda value: torch.nn.functional.linear(value, weight, bias)

    return forward_of


def _refuse_unfit(program: Any, torch: Any, module: Any, layers: list[Any]) -> None:
    """Refuse where layers of a model are not to be replaced."""
    parts = list(module.modules())
    if module.training:
        program.refuse("model-in-training-mode")
    if any(layer.weight.dtype is not torch.float32 for layer in layers):
        program.refuse("layer-not-float32")
    if any(layer.weight.device.type != "cpu" for layer in layers):
        program.refuse("model-not-on-cpu")
    holders = Counter(id(weight) for part in parts for weight in part._parameters.values())
    if any(holders[id(layer.weight)] > 1 for layer in layers):
        program.refuse("weight-of-two-modules")
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    if any(getattr(layer, name, None) for layer in layers for name in hooks):
        program.refuse("layer-has-hooks")
    if any("forward" in vars(layer) for layer in layers):
        program.refuse("forward-replaced-already")
    if any(isinstance(part, torch.nn.TransformerEncoderLayer) for part in parts):
        program.refuse("weights-read-elsewhere")


def apply(torch: Any, settings: Settings, program: Any) -> None:
    changed: dict[int, list[Any]] = {}  # by module: its layers that compute in 8 bits
    in_8_bits: set[Any] = set()

    def guarded(layer: Any, compute: Any) -> Any:
        def forward(value: Any) -> Any:
            try:
                return compute(value)
            except RuntimeError as error:
                why = program.reason("cannot-compute", message=str(error))
                program.guarded(program.refuse_for, why)
                return type(layer).forward(layer, value)

        return forward

    def begin(module: Any) -> None:
        # A layer that is the whole model has no parent in which it could be replaced for good; what
        # is called by itself may be a part of a model that is called too.
        layers = [
            part
            for part in module.modules()
            if type(part) is torch.nn.Linear and part is not module and part not in in_8_bits
        ]
        if not layers:
            return
        _refuse_unfit(program, torch, module, layers)
        forward_of = _by_torch(torch) or _by_torchao(torch)
        if forward_of is None:
            program.refuse("no-quantizer")
            return
        with warnings.catch_warnings(), torch.inference_mode(False), torch.no_grad():
            warnings.simplefilter("ignore")  # of what is deprecated
            forwards = [guarded(layer, forward_of(layer)) for layer in layers]
        for layer, forward in zip(layers, forwards, strict=True):
            layer.forward = forward
        changed[id(module)] = layers
        in_8_bits.update(layers)
        program.applied(layers=len(layers))

    def undo(module: Any) -> None:
        for layer in changed.pop(id(module), ()):
            del layer.forward
            in_8_bits.discard(layer)

    program.set_reason("no-linear-called")
    program.on_model(begin, undo)


def location(recording: Recording) -> Location | None:
    called = [model.call.location for model in _with_layers(recording) if model.call]
    return called[0] if called else None


def edits(settings: Settings, recording: Recording) -> list[Edit]:
    return before_training(recording, _QUANTIZE)


def _with_products(seconds: float) -> dict[str, object]:
    """Return an example with a trace whose step of 10 ms multiplies for so long."""
    operators = [{"name": "aten::addmm", "calls_per_step": 8, "self_s": seconds}]
    return {
        "steps": {"boundary": {"kind": "forward", "learned_by": "forward"}},
        "trace": {"path": "t", "steps": 4, "step_s": 0.01, "operators": operators},
    }


_INFERS = _with_products(0.008)
_MODEL = {"ident": 0, "forwards": 9, "eval_forwards": 9, "linear": 8, "dtypes": ["float32"]}
FIX: FixSpec = FixSpec(
    name="int8 weights",
    treats=("compute", "low-precision-unused"),
    keeps_results="lower precision",
    when="between steps",
    phases=("forward_s",),
    includes=lambda _: ("bfloat16-weights",),  # 8 bits in place of 16: not both at once
    p_helps=0.7,  # all of four programs of ours whose Linear layers took most of a step
    touches=touches,
    refuses=refuses,
    sentences={
        "weights-stored": "{file} stores the weights, which would be those in 8 bits.",
        "linear-hardly-matters": "Linear layers take {share:.0%} of the step: less than a fifth.",
        "no-float32-linear": "No model with Linear layers, all in float32, is called.",
        "training-mode-alone": "A model is called in training mode alone, which quantizing it "
        "would change.",
        "linear-unmeasured": "What Linear layers take was not measured: that needs the profiler "
        "window.",
        "cannot-compute": "A Linear layer cannot compute in 8 bits: {message}",
        "model-in-training-mode": "The model is in training mode.",
        "layer-not-float32": "A Linear layer is not in float32.",
        "weight-of-two-modules": "The weight of a Linear layer is that of another module too.",
        "layer-has-hooks": "A Linear layer has hooks.",
        "forward-replaced-already": "The forward of a Linear layer is replaced already.",
        "weights-read-elsewhere": "nn.TransformerEncoderLayer reads the weights of its Linear "
        "layers itself.",
        "no-quantizer": "This torch has no quantize_dynamic, and torchao is not installed.",
        "no-linear-called": "No model with Linear layers was called.",
    },
    suits=lambda trace: False,
    apply=apply,
    location=location,
    instruction=lambda settings, recording: FIX.permanent_form,
    edits=edits,
    refusals=[
        ({}, "program-trains"),
        ({**_INFERS, **process(models=[{**_MODEL, "device": "cuda:0"}])}, "run-on-cpus-alone"),
        ({**_INFERS, **process(models=[{**_MODEL, "linear": 0}])}, "no-float32-linear"),
        ({**_INFERS, **process(models=[{**_MODEL, "dtypes": ["bfloat16"]}])}, "no-float32-linear"),
        ({**_INFERS, **process(models=[{**_MODEL, "eval_forwards": 0}])}, "training-mode-alone"),
        ({**_INFERS, **process(models=[{**_MODEL, "autocast_forwards": 9}])}, "autocast-already"),
        (
            {**_INFERS, "trace": None, **process(models=[{**_MODEL, "conv2d": 3}])},
            "linear-unmeasured",
        ),
        ({**_with_products(0.001), **process(models=[_MODEL])}, "linear-hardly-matters"),
        ({**_INFERS, **process(models=[{**_MODEL, "compiled": True}])}, "compiled-already"),
    ],
    example=Example(
        code="""
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
model.eval()
data = torch.utils.data.TensorDataset(torch.rand(8, 64))
with torch.no_grad():
    for (x,) in torch.utils.data.DataLoader(data, batch_size=4):
        output = model(x)
    hidden = torch.relu(torch.nn.functional.linear(x, model[0].weight, model[0].bias))
    exact = torch.nn.functional.linear(hidden, model[2].weight, model[2].bias)
print("exact:", torch.equal(output, exact), "close:", torch.allclose(output, exact, atol=0.05))
""",
        without="exact: True close: True",
        with_fix="exact: False close: True",
    ),
)
