"""Infer with ONNX Runtime in place of PyTorch.

## What it does
It gives the code: the model is exported once, and a session of ONNX Runtime computes each batch.

## Why it helps
The session folds and joins operators ahead, and no Python runs between them.

## Risks
A forward whose Python depends on values cannot be exported, and what was exported knows of no later
change to the weights. 4 blocks of two Linear layers, 512 and 2048 wide, on one busy core, were 2.1x
as fast for 64 rows (three fifths of 15 pairs of calls: 1.9x to 3.8x) and 1.8x for one (1.2x to
4.3x); all of 2,000 decisions stayed the same. A small BERT was 1.5x as fast for 64 texts (1.0x to
1.7x), and undecided for one. No GPU was tried.

## Make it permanent
    # pip install onnx onnxscript onnxruntime
    import onnxruntime
    inputs = {"x": x}  # by the names of forward's parameters, at least two rows
    rows, length = torch.export.Dim("rows"), torch.export.Dim("length")
    sizes = {key: {0: rows} for key in inputs}  # texts: {0: rows, 1: length}
    exported = torch.onnx.export(model.eval(), kwargs=inputs, dynamo=True, dynamic_shapes=sizes)
    exported.save("model.onnx")
    session = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
    output = session.run(None, {key: value.numpy() for key, value in inputs.items()})[0]

## Sources
- PyTorch, torch.onnx: https://docs.pytorch.org/docs/stable/onnx.html
- ONNX Runtime, Python API: https://onnxruntime.ai/docs/api/python/api_summary.html
"""

from torchdoctor.fixes._parts import infers_elsewhere
from torchdoctor.queries.lookup import training_models
from torchdoctor.queries.touched import phases
from torchdoctor.schema import Evidence, FixSpec, Recording, fact, process

_DECODES = ("generate", "chat", "transcribe")


def refuses(recording: Recording) -> Evidence | None:
    if elsewhere := infers_elsewhere(recording):
        return elsewhere
    models = training_models(recording)
    if not any(model.linear for model in models):
        return fact("no-linear-layers")
    if any(model.conv2d or model.recurrent for model in models):
        return fact("untried-layers")
    decodes = any(entry.name in _DECODES and entry.calls for entry in recording.main.entry_points)
    if decodes or any(model.grown_calls for model in models):
        return fact("decodes-tokens")
    if any(model.compiled for model in models):
        return fact("compiled-already")
    if any(model.dtypes != ["float32"] for model in models):
        return fact("not-in-float32")
    return None


_STEPS = {"boundary": {"kind": "forward", "learned_by": "forward"}}
_MODEL = {"ident": 0, "forwards": 9, "linear": 8, "dtypes": ["float32"]}
FIX: FixSpec = FixSpec(
    name="ONNX Runtime",
    treats=("compute", "python-overhead", "many-small-kernels"),
    keeps_results="within rounding",
    untried="it exports the model to a library that the program does not have.",
    touches=lambda recording: phases(recording, "forward_s"),
    refuses=refuses,
    sentences={
        "no-linear-layers": "No model with Linear layers is called.",
        "untried-layers": "The model has convolutions or recurrent layers, with which it was not "
        "run.",
        "decodes-tokens": "The model decodes token by token, which one exported call does not.",
        "not-in-float32": "The model is not in float32 throughout, as all that was tried.",
    },
    suits=lambda trace: False,
    least_torch=(2, 5),
    instruction=lambda settings, recording: FIX.permanent_form,
    offers=[({"steps": _STEPS, **process(models=[_MODEL])}, "torch.onnx.export(")],
    refusals=[
        ({}, "program-trains"),
        (
            {"steps": _STEPS, **process(models=[{**_MODEL, "device": "cuda:0"}])},
            "run-on-cpus-alone",
        ),
        ({"steps": _STEPS, **process(models=[{**_MODEL, "linear": 0}])}, "no-linear-layers"),
        ({"steps": _STEPS, **process(models=[{**_MODEL, "conv2d": 3}])}, "untried-layers"),
        ({"steps": _STEPS, **process(models=[{**_MODEL, "grown_calls": 8}])}, "decodes-tokens"),
        (
            {
                "steps": _STEPS,
                **process(
                    models=[_MODEL],
                    entry_points=[{"ident": 0, "name": "generate", "calls": 3}],
                ),
            },
            "decodes-tokens",
        ),
        ({"steps": _STEPS, **process(models=[{**_MODEL, "compiled": True}])}, "compiled-already"),
        (
            {"steps": _STEPS, **process(models=[{**_MODEL, "dtypes": ["bfloat16"]}])},
            "not-in-float32",
        ),
    ],
)
