"""Infer with Linear layers in 8 bits.

## What it does
It gives the lines for torchao: weights of Linear layers are rounded to int8 once, what they
multiply at each call, and the share of decisions that stay the same is printed.

## Why it helps
CPUs with VNNI instructions multiply four pairs of int8 in place of one of float32, and the weights
take a quarter of the memory.

## Risks
Outputs differ in the third digit, and close decisions may turn. Batches of few rows may get slower:
4 blocks of two Linear layers, 512 and 2048 wide, on one busy core with VNNI, were 2.0x as fast for
64 rows (three fifths of 15 pairs of calls: 1.5x to 2.5x) and 0.55x for one (0.36x to 0.72x); all of
2,000 decisions stayed the same. Both compiled, 64 rows were 3.2x as fast (3.0x to 3.8x). No GPU was
tried. Weights alone in 8 bits were not found faster.

## Make it permanent
    # pip install torchao; x: inputs whose decisions count
    import copy, torchao.quantization
    before = copy.deepcopy(model)
    scheme = torchao.quantization.Int8DynamicActivationInt8WeightConfig()
    torchao.quantization.quantize_(model.eval(), scheme)
    with torch.inference_mode():
        same = model(x).argmax(-1) == before.eval()(x).argmax(-1)
    print(f"{same.float().mean():.2%} of the decisions stay the same")

## Sources
- torchao, quantization: https://docs.pytorch.org/ao/stable/api_reference/api_ref_quantization.html
"""

import re

from torchdoctor.fixes._parts import infers_elsewhere
from torchdoctor.queries.lookup import training_models
from torchdoctor.queries.touched import calls
from torchdoctor.schema import FixSpec, Recording, Touches, process

_LINEAR = re.compile(r"^aten::(?:addmm|mm|linear)$|_linear")
_LEAST = 0.5  # of the step


def _linear_share(recording: Recording) -> float | None:
    """Return the share of the step in products that Linear layers make; None: not measured."""
    trace = recording.trace
    if trace is None or not trace.step_s or not trace.operators:
        return None
    spent_s = [operator.self_s for operator in trace.operators if _LINEAR.search(operator.name)]
    return min(sum(spent_s) / trace.step_s, 1.0)


def refuses(recording: Recording) -> str | None:
    if elsewhere := infers_elsewhere(recording):
        return elsewhere
    models = training_models(recording)
    if not any(model.linear and model.dtypes == ["float32"] for model in models):
        return "No model with Linear layers in float32 is called."
    share = _linear_share(recording)
    if share is None:
        return "Operators were not measured: that needs the profiler window."
    if share < _LEAST:
        return f"Linear layers take {share:.0%} of the step: less than half."
    if any(model.compiled for model in models):
        return "The model is compiled already."
    return None


def touches(recording: Recording) -> Touches:
    share = _linear_share(recording)
    if share is None or recording.steps is None:
        return None
    return calls(recording, share * recording.steps.mean_s, "products of Linear layers")


def _with_products(seconds: float) -> dict[str, object]:
    """Return an example with a trace whose step of 10 ms multiplies for so long."""
    operators = [{"name": "aten::addmm", "calls_per_step": 8, "self_s": seconds}]
    return {
        "steps": {"boundary": {"kind": "forward", "learned_by": "forward"}},
        "trace": {"path": "t", "steps": 4, "step_s": 0.01, "operators": operators},
    }


_INFERS = _with_products(0.008)
_MODEL = {"ident": 0, "forwards": 9, "linear": 8, "dtypes": ["float32"]}
FIX: FixSpec = FixSpec(
    name="int8 weights",
    treats=("compute", "low-precision-unused"),
    keeps_results="lower precision",
    untried="it needs torchao, and inputs whose decisions count.",
    touches=touches,
    refuses=refuses,
    suits=lambda trace: False,
    instruction=lambda settings, recording: FIX.permanent_form,
    offers=[({**_INFERS, **process(models=[_MODEL])}, "quantize_(")],
    refusals=[
        ({}, "trains"),
        ({**_INFERS, **process(models=[{**_MODEL, "device": "cuda:0"}])}, "GPU"),
        ({**_INFERS, **process(models=[{**_MODEL, "linear": 0}])}, "Linear"),
        ({**_INFERS, **process(models=[{**_MODEL, "dtypes": ["bfloat16"]}])}, "float32"),
        ({**_INFERS, "trace": None, **process(models=[_MODEL])}, "profiler window"),
        ({**_with_products(0.002), **process(models=[_MODEL])}, "less than half"),
        ({**_INFERS, **process(models=[{**_MODEL, "compiled": True}])}, "compiled"),
    ],
)
