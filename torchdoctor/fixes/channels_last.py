"""Store images pixel by pixel (NHWC) instead of plane by plane (NCHW).

What it does
------------
Converts the convolution weights of each root module and the 4-D inputs of its forward to
`torch.channels_last`. Shapes stay the same; only the order in memory changes.

Why it helps
------------
Tensor cores, and oneDNN on the CPU, compute convolutions with the channels of a pixel next to each
other. From NCHW the library transposes before and after, or takes a slower kernel. The gain is
largest together with 16-bit precision on a GPU.

Risks
-----
Results differ by rounding. Operators that do not know the format convert back and forth, which can
make a model slower. Code that calls `.view()` on an activation may fail and needs `.reshape()`.

Make it permanent
-----------------
    model = model.to(memory_format=torch.channels_last)      # after moving it to the device
    x = x.to(device, memory_format=torch.channels_last)      # each batch of images

Sources
-------
- PyTorch tutorial, "Channels Last Memory Format in PyTorch":
  https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html
- PyTorch blog, "Accelerating PyTorch Vision Models with Channels Last on CPU":
  https://pytorch.org/blog/accelerating-pytorch-vision-models-with-channels-last-on-cpu/
"""

from __future__ import annotations

import weakref
from typing import Any

from torchdoctor.edits import Edit
from torchdoctor.edits.training import before_training, on_images
from torchdoctor.facts.lookup import convolves, training_models
from torchdoctor.fixes import mixed_precision
from torchdoctor.words import Recording
from torchdoctor.words.specs import Example, FixSpec


def refuses(recording: Recording) -> str | None:
    """Return why the format cannot apply or cannot gain."""
    models = [m for m in training_models(recording) if m.conv2d]
    if not models:
        return "The model has no 2-D convolutions."
    if all(m.conv_channels_last for m in models):
        return "The convolutions already are in channels_last."
    wrapped = next((m.data_parallel for m in models if m.data_parallel), None)
    if wrapped is not None:
        return (
            f"The model is wrapped in {wrapped}, which keeps the strides it was built with: "
            "convert the model before wrapping it."
        )
    return None


def together(settings: dict[str, Any], recording: Recording) -> dict[str, dict[str, Any]]:
    """Return low precision, whose kernels are made for this layout."""
    if mixed_precision.refuses(recording) is not None:
        return {}
    return {"mixed-precision": mixed_precision.settings(recording)[0]}


def apply(torch: Any, settings: dict[str, Any], program: Any) -> None:
    """Convert root modules with 2-D convolutions, and their inputs at each call."""
    converted: weakref.WeakKeyDictionary[Any, _Before | None] = weakref.WeakKeyDictionary()
    channels_last = torch.channels_last

    def convert(module: Any) -> None:
        modules = list(module.modules())
        if not any(isinstance(m, torch.nn.Conv2d) for m in modules):
            return
        if any("Parallel" in type(m).__name__ for m in modules):
            program.refuse("The model is wrapped for data parallelism: convert it before.")
        before = [id(parameter) for parameter in module.parameters()]
        if program.switched:
            converted[module] = _Before(module)
        module.to(memory_format=channels_last)
        if [id(parameter) for parameter in module.parameters()] != before:
            # torch.__future__.set_overwrite_module_params_on_conversion(True)
            program.refuse("Converting replaced the parameters: the optimizer holds the old ones.")
        converted.setdefault(module, None)
        if program.switched:
            _follow(torch, module, program.optimizers())
        program.applied()

    def undo(module: Any) -> None:
        before = converted.pop(module, None)
        if before is not None:
            before.restore()
            _follow(torch, module, program.optimizers())

    def change(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if value.dim() == 4 and value.is_floating_point():
                return value.contiguous(memory_format=channels_last)
            return value
        if type(value) in (tuple, list):
            return type(value)(change(item) for item in value)
        if type(value) is dict:
            return {key: change(item) for key, item in value.items()}
        return value

    def convert_inputs(module: Any, args: Any, kwargs: Any) -> Any:
        if module not in converted:
            return args, kwargs
        return change(args), change(kwargs)

    program.set_reason("No root module with 2-D convolutions came by.")
    program.on_model(convert, undo)
    program.before_forward(convert_inputs)


class _Before:
    """The tensors of a module before it is converted: their storage comes back with its values.

    Whoever else holds that storage (tied weights, a flat buffer) then sees the same again.
    """

    def __init__(self, module: Any) -> None:
        self._parameters: list[tuple[Any, str, Any, Any]] = []
        self._buffers: list[tuple[Any, str, Any]] = []
        for owner in module.modules():
            for name, parameter in owner._parameters.items():
                if parameter is not None:
                    self._parameters.append((owner, name, parameter, parameter.data))
            for name, buffer in owner._buffers.items():
                if buffer is not None:
                    self._buffers.append((owner, name, buffer))

    def restore(self) -> None:
        """Put the storage back, with the values of now."""
        for owner, name, parameter, data in self._parameters:
            now = owner._parameters.get(name)
            if now is not None and now.data_ptr() != data.data_ptr():
                data.copy_(now.data)
                parameter.data = data
                owner._parameters[name] = parameter
        for owner, name, buffer in self._buffers:
            now = owner._buffers.get(name)
            if now is not None and now is not buffer:
                buffer.copy_(now)
                owner._buffers[name] = buffer


def _follow(torch: Any, module: Any, optimizers: Any) -> None:
    """Convert gradients and optimizer states along with their parameter.

    Updating tensors of two formats together is slow, which no launch with the fix would show.
    """

    def follow(tensor: Any, parameter: Any) -> None:
        if tensor.shape == parameter.shape and tensor.stride() != parameter.stride():
            like = torch.empty_strided(
                parameter.shape, parameter.stride(), dtype=tensor.dtype, device=tensor.device
            )
            tensor.data = like.copy_(tensor.data)

    for parameter in module.parameters():
        if parameter.grad is not None:
            follow(parameter.grad, parameter)
        for optimizer in optimizers:
            for value in optimizer.state.get(parameter, {}).values():
                if isinstance(value, torch.Tensor):
                    follow(value, parameter)


def instruction(settings: dict[str, Any], recording: Recording) -> str:
    """Return what to convert."""
    return (
        "model = model.to(memory_format=torch.channels_last)  # after moving it to the device\n"
        "x = x.to(memory_format=torch.channels_last)  # each batch of images"
    )


def edits(settings: dict[str, Any], recording: Recording) -> list[Edit]:
    """Return the edits; none unless both the model and its images can be converted."""
    images = on_images(recording, ".to(memory_format=torch.channels_last)")
    model = before_training(recording, "{model}.to(memory_format=torch.channels_last)")
    return [*model, *images] if model and images else []


FIX = FixSpec(
    file=__file__,
    page=__doc__,
    treats=("convolutions-nchw", "compute"),
    keeps_results="within rounding",
    when="between steps",
    p_helps=0.3,
    refuses=refuses,
    together=together,
    suits=convolves,
    apply=apply,
    instruction=instruction,
    edits=edits,
    example=Example(
        code="""
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3)

    def forward(self, x):
        formats.add(x.is_contiguous(memory_format=torch.channels_last))
        return self.conv(x)


torch.manual_seed(0)
formats = set()
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
before = net.conv.weight.detach().clone()
data = torch.utils.data.TensorDataset(torch.randn(8, 3, 8, 8))
for (x,) in torch.utils.data.DataLoader(data, batch_size=4):
    net(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
weight = net.conv.weight
print("weights:", weight.is_contiguous(memory_format=torch.channels_last), "inputs:", formats)
held = optimizer.param_groups[0]["params"][0]
print("trained:", not torch.equal(weight, before), "same parameter:", weight is held)
""",
        without="""weights: False inputs: {False}
trained: True same parameter: True""",
        with_fix="""weights: True inputs: {True}
trained: True same parameter: True""",
    ),
)
