"""Store images pixel by pixel (NHWC) instead of plane by plane (NCHW).

## What it does
Stores convolution weights and the 4-D inputs of root modules as `torch.channels_last`: same shapes.

## Why it helps
Tensor cores, and oneDNN on the CPU, compute convolutions with the channels of a pixel next to each
other. From NCHW the library transposes before and after, or takes a slower kernel. The gain is
largest together with 16-bit precision on a GPU.

## Risks
Results differ by rounding. Operators that do not know the format convert back and forth, which can
make a model slower. Code that calls `.view()` on an activation may fail and needs `.reshape()`.

## Make it permanent
    model = model.to(memory_format=torch.channels_last)      # after moving it to the device
    x = x.to(device, memory_format=torch.channels_last)      # each batch of images

## Sources
- PyTorch, Channels Last:
  https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html
"""

import itertools
import weakref
from typing import Any

from torchdoctor.edits import Edit
from torchdoctor.edits.training import before_training, on_images
from torchdoctor.fixes import mixed_precision
from torchdoctor.queries.lookup import convolves, training_models
from torchdoctor.queries.touched import convolutions
from torchdoctor.schema import Evidence, Example, FixSpec, Recording, Settings, fact


def refuses(recording: Recording) -> Evidence | None:
    models = [m for m in training_models(recording) if m.conv2d]
    if not models:
        return fact("no-2d-convolutions")
    if all(m.conv_channels_last for m in models):
        return fact("channels-last-already")
    wrapped = next((m.data_parallel for m in models if m.data_parallel), None)
    if wrapped is not None:
        return fact("wrapped", wrapper=wrapped)
    return None


def together(settings: Settings, recording: Recording) -> dict[str, Settings]:
    """Return low precision, whose kernels are made for this layout."""
    if mixed_precision.refuses(recording) is not None:
        return {}
    return {"mixed-precision": mixed_precision.settings(recording)[0]}


def apply(torch: Any, settings: Settings, program: Any) -> None:
    converted: weakref.WeakSet[Any] = weakref.WeakSet()

    def convert(module: Any) -> None:
        modules = list(module.modules())
        if not any(isinstance(m, torch.nn.Conv2d) for m in modules):
            return
        if any("Parallel" in type(m).__name__ for m in modules):
            program.refuse("wrapped-before-conversion")
        converted.add(module)
        before = [id(parameter) for parameter in module.parameters()]
        _lay_out(torch, module, torch.channels_last, program.optimizers())
        if [id(parameter) for parameter in module.parameters()] != before:
            # torch.__future__.set_overwrite_module_params_on_conversion(True)
            program.refuse("parameters-replaced")
        program.applied()

    def undo(module: Any) -> None:
        if module in converted:
            converted.remove(module)
            _lay_out(torch, module, torch.contiguous_format, program.optimizers())

    def change(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.dim() == 4 and value.is_floating_point():
            return value.contiguous(memory_format=torch.channels_last)
        return value

    def convert_inputs(module: Any, args: Any, kwargs: Any) -> Any:
        if module not in converted:
            return args, kwargs
        return torch.utils._pytree.tree_map(change, (args, kwargs))

    program.set_reason("no-convolutions-seen")
    program.on_model(convert, undo)
    program.at("arguments", convert_inputs)


def _lay_out(torch: Any, module: Any, memory_format: Any, optimizers: Any) -> None:
    """Convert a module, and gradients and optimizer states along with their parameter.

    Updating tensors of two formats together is slow, which no launch with the fix would show.
    """
    module.to(memory_format=memory_format)
    for parameter in module.parameters():
        states = [optimizer.state.get(parameter, {}).values() for optimizer in optimizers]
        for tensor in (parameter.grad, *itertools.chain(*states)):
            if isinstance(tensor, torch.Tensor) and tensor.shape == parameter.shape:
                like = torch.empty_like(parameter, dtype=tensor.dtype, device=tensor.device)
                tensor.data = like.copy_(tensor.data)


def edits(settings: Settings, recording: Recording) -> list[Edit]:
    """Return the edits; none unless both the model and its images can be converted."""
    images = on_images(recording, ".to(memory_format=torch.channels_last)")
    model = before_training(recording, "{model}.to(memory_format=torch.channels_last)")
    return [*model, *images] if model and images else []


FIX: FixSpec = FixSpec(
    name="channels-last",
    treats=("convolutions-nchw", "compute"),
    keeps_results="within rounding",
    when="between steps",
    phases=("forward_s", "backward_s"),
    p_helps=0.3,  # gained in 1 of 3 programs of benchmarks/logs
    refuses=refuses,
    sentences={
        "wrapped": "The model is wrapped in {wrapper}, which keeps the strides it was built with: "
        "convert the model before wrapping it.",
        "no-2d-convolutions": "The model has no 2-D convolutions.",
        "channels-last-already": "The convolutions already are in channels_last.",
        "wrapped-before-conversion": "The model is wrapped for data parallelism: convert it "
        "before.",
        "parameters-replaced": "Converting replaced the parameters: the optimizer holds the old "
        "ones.",
        "no-convolutions-seen": "No root module with 2-D convolutions was seen.",
    },
    together=together,
    touches=lambda recording: convolutions(recording, flat_too=False),
    suits=convolves,
    platforms=("cuda", "xpu"),
    apply=apply,
    instruction=lambda settings, recording: FIX.permanent_form,
    edits=edits,
    example=Example(
        code="""
torch.manual_seed(0)
formats = set()
net = torch.nn.Conv2d(3, 8, 3)
net.register_forward_pre_hook(lambda module, args: formats.add(
    args[0].is_contiguous(memory_format=torch.channels_last)))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
before = net.weight.detach().clone()
data = torch.utils.data.TensorDataset(torch.randn(8, 3, 8, 8))
for (x,) in torch.utils.data.DataLoader(data, batch_size=4):
    net(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
weight = net.weight
print("weights:", weight.is_contiguous(memory_format=torch.channels_last), "inputs:", formats)
held = optimizer.param_groups[0]["params"][0]
print("trained:", not torch.equal(weight, before), "same parameter:", weight is held)
""",
        without="weights: False inputs: {False}\ntrained: True same parameter: True",
        with_fix="weights: True inputs: {True}\ntrained: True same parameter: True",
    ),
)
