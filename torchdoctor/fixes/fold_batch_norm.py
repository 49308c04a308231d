"""Fold batch normalization into the convolution before it.

## What it does
In a model that infers in evaluation mode, takes what a batch normalization does into the weights
and the bias of the convolution whose output it gets, and leaves the normalization out. Which belong
together is seen in one call; the outputs of both ways are compared before it stays.

## Why it helps
With the statistics that it learned, a batch normalization is a factor and a summand for each
channel, which the convolution can apply for nothing. Each is a pass over all activations otherwise.

## Risks
Rounding. The model that is folded cannot be trained further, so keep the original's weights.

## Make it permanent
    import torch.fx.experimental.optimization
    model = torch.fx.experimental.optimization.fuse(model.eval())

## Sources
- PyTorch, Building a Convolution/Batch Norm fuser with FX:
  https://docs.pytorch.org/tutorials/intermediate/fx_conv_bn_fuser.html
"""

from typing import Any

from torchdoctor.edits import Edit, StatementEdit
from torchdoctor.edits.training import before_training
from torchdoctor.queries.lookup import training_models
from torchdoctor.schema import (
    Evidence,
    Example,
    FixSpec,
    ModelFacts,
    Recording,
    Settings,
    fact,
    process,
)

_IMPORT = "import torch.fx.experimental.optimization"
_FUSE = "{model} = torch.fx.experimental.optimization.fuse({model}.eval())"


def _foldable(recording: Recording) -> list[ModelFacts]:
    models = training_models(recording)
    return [m for m in models if m.conv2d and m.norms and m.eval_forwards]


def refuses(recording: Recording) -> Evidence | None:
    if not recording.infers:
        return fact("for-programs-that-infer")
    models = _foldable(recording)
    if not models:
        return fact("no-normalized-convolutions")
    if any(m.compiled for m in models):
        return fact("compiled")
    return None


class _Folding:
    """The convolutions of a model with the norm behind each, and what they were before."""

    def __init__(self, torch: Any, pairs: Any) -> None:
        self.torch = torch
        self.pairs = pairs
        self.before: list[Any] = []

    def fold(self) -> None:
        """Put the norms into the convolutions; a second time changes nothing."""
        if self.before:
            return
        fused = self.torch.nn.utils.fusion.fuse_conv_bn_weights
        with self.torch.inference_mode(False):
            for conv, norm in self.pairs:
                self.before.append((conv, norm, conv.weight, conv.bias))
                numbers = (norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias)
                conv.weight, conv.bias = fused(conv.weight, conv.bias, *numbers)
                norm.forward = _unchanged

    def undo(self) -> None:
        """Leave all as it was."""
        for conv, norm, weight, bias in self.before:
            conv.weight = weight
            conv.bias = bias
            del norm.forward
        self.before = []


def _unchanged(value: Any) -> Any:
    return value


def _pairs(torch: Any, module: Any, call: Any) -> tuple[Any, list[tuple[Any, Any]]]:
    """Return what a call gives, and each convolution with the one norm that got its output."""
    nn = torch.nn
    outputs: list[tuple[Any, Any]] = []
    pairs: list[tuple[Any, Any]] = []
    calls: dict[Any, int] = {}

    def after_convolution(conv: Any, _: Any, output: Any) -> None:
        outputs.append((conv, output))  # held, so that no other tensor takes its identity
        calls[conv] = calls.get(conv, 0) + 1

    def before_norm(norm: Any, args: Any) -> None:
        calls[norm] = calls.get(norm, 0) + 1
        conv = next((conv for conv, output in outputs if args and output is args[0]), None)
        plain = not norm.training and norm.running_mean is not None
        if conv is not None and plain and "forward" not in norm.__dict__:
            pairs.append((conv, norm))

    hooks = []
    for part in module.modules():
        if type(part) in (nn.Conv1d, nn.Conv2d, nn.Conv3d):
            hooks.append(part.register_forward_hook(after_convolution))
        elif type(part) in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):
            hooks.append(part.register_forward_pre_hook(before_norm))
    try:
        output = call()
    finally:
        for hook in hooks:
            hook.remove()
    return output, [pair for pair in pairs if all(calls[part] == 1 for part in pair)]


def apply(torch: Any, settings: Settings, program: Any) -> None:
    foldings: dict[int, _Folding] = {}
    leaves_of = torch.utils._pytree.tree_leaves

    def same(output: Any, other: Any) -> bool:
        tensors = [
            [leaf for leaf in leaves_of(result) if torch.is_tensor(leaf)]
            for result in (output, other)
        ]
        for ours, theirs in zip(*tensors, strict=True):
            scale = float(theirs.float().abs().max()) if theirs.numel() else 0.0
            if not torch.allclose(ours.float(), theirs.float(), rtol=1e-3, atol=1e-4 * scale):
                return False
        return True

    def answer(module: Any, args: Any, kwargs: Any) -> Any:
        if module.training or id(module) in foldings:
            return None
        whole, pairs = _pairs(torch, module, lambda: module._call_impl(*args, **kwargs))
        if not pairs:
            return (whole,)
        folding = foldings[id(module)] = _Folding(torch, pairs)
        folding.fold()
        if not same(module._call_impl(*args, **kwargs), whole):
            folding.undo()
            program.refuse("output-used-before-norm")
        program.applied(convolutions=len(pairs))
        return (whole,)

    def begin(module: Any) -> None:
        if id(module) in foldings:
            foldings[id(module)].fold()

    def undo(module: Any) -> None:
        if id(module) in foldings:
            foldings[id(module)].undo()

    program.set_reason("no-convolution-fed-norm")
    program.on_model(begin, undo)
    program.around_model(answer, lambda *_: None)


def edits(settings: Settings, recording: Recording) -> list[Edit]:
    folds = before_training(recording, _FUSE)
    script = recording.workload.script
    if not folds or script is None:
        return []
    return [StatementEdit(file=script, statement=_IMPORT), *folds]


_INFERS = {"steps": {"boundary": {"kind": "forward", "learned_by": "forward"}}}
_MODEL = {"ident": 0, "forwards": 9, "eval_forwards": 9}
FIX: FixSpec = FixSpec(
    name="fold batch norm",
    treats=("compute",),
    keeps_results="within rounding",
    when="between steps",
    phases=("forward_s",),
    no_bound="What the normalizations take was not recorded by themselves.",
    p_helps=0.4,
    refuses=refuses,
    sentences={
        "no-normalized-convolutions": "No model with convolutions and normalizations is called in "
        "evaluation mode.",
        "compiled": "The model is compiled, and the compiler folds what it can.",
        "output-used-before-norm": "Something else gets the output of a convolution before its "
        "norm.",
        "no-convolution-fed-norm": "No convolution fed a batch normalization in evaluation mode.",
    },
    suits=lambda trace: False,
    apply=apply,
    instruction=lambda settings, recording: FIX.permanent_form,
    edits=edits,
    refusals=[
        ({}, "for-programs-that-infer"),
        ({**_INFERS, **process(models=[_MODEL])}, "no-normalized-convolutions"),
        (
            {**_INFERS, **process(models=[{**_MODEL, "conv2d": 2, "norms": 2, "compiled": True}])},
            "compiled",
        ),
    ],
    example=Example(
        code="""
torch.manual_seed(0)
layers = [torch.nn.Conv2d(3, 4, 3, bias=False), torch.nn.BatchNorm2d(4), torch.nn.ReLU()]
net = torch.nn.Sequential(*layers).eval()
net[1].running_mean.fill_(0.5)
net[1].running_var.fill_(2.0)
data = torch.utils.data.TensorDataset(torch.ones(80, 3, 8, 8))
with torch.no_grad():
    for (x,) in torch.utils.data.DataLoader(data, batch_size=4):
        output = net(x)
print("bias: %s output: %.3f" % (net[0].bias is not None, output.sum().item()))
""",
        without="bias: False output: 0.000",
        with_fix="bias: True output: 0.000",
    ),
)
