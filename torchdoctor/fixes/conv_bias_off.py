"""Drop the bias of a convolution that a batch normalization follows.

What it does
------------
Watches one training forward pass for convolutions whose output goes into a batch normalization and
nowhere else, and takes their bias away. The running mean of the normalization is shifted by the
same amount, so that evaluation computes what it did before.

Why it helps
------------
A batch normalization in training subtracts the mean of each channel, so a bias before it cancels.
Computing, differentiating and updating it is work for nothing: a reduction over the whole output,
a small kernel, and one more tensor for the optimizer in each layer.

Risks
-----
The bias cancels up to rounding. Checkpoints lack its key: an older one loads with `strict=False`,
and then the running mean holds the old bias. A normalization in evaluation mode while training does
not cancel it, and is left alone.

Make it permanent
-----------------
    nn.Conv2d(64, 128, kernel_size=3, bias=False), nn.BatchNorm2d(128)

Sources
-------
- PyTorch Performance Tuning Guide, "Disable bias for convolutions directly followed by a batch
  norm": https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
- Ioffe and Szegedy, "Batch Normalization: Accelerating Deep Network Training by Reducing Internal
  Covariate Shift", 2015 (section 3.2): https://arxiv.org/abs/1502.03167
"""

from __future__ import annotations

import weakref
from typing import Any

from torchdoctor.edits.reading import convolutions_before_norm
from torchdoctor.facts.lookup import convolves, place, training_models
from torchdoctor.words import Location, Recording
from torchdoctor.words.specs import Example, FixSpec


def refuses(recording: Recording) -> str | None:
    """Return why there is no bias to drop."""
    models = [m for m in training_models(recording) if m.conv_bias_before_norm]
    if not models:
        return "No convolution with a bias stands right before a batch normalization."
    if any(m.compiled for m in models):
        return "The model is compiled, so its operators cannot be watched: drop it in the source."
    wrapped = next((m.data_parallel for m in models if m.data_parallel), None)
    if wrapped is not None:
        return f"The model is wrapped in {wrapped}, which expects the parameters it was given."
    return None


def apply(torch: Any, settings: dict[str, Any], program: Any) -> None:
    """Watch the first training forward of each root module, then drop the biases."""
    done: weakref.WeakSet[Any] = weakref.WeakSet()

    def watch(module: Any) -> Any:
        if module in done or not module.training or not torch.is_grad_enabled():
            return None
        done.add(module)
        modules = list(module.modules())
        if any("Parallel" in type(m).__name__ for m in modules):
            program.refuse("The model is wrapped for data parallelism.")
        if any(getattr(m, "_compiled_call_impl", None) for m in modules if m is not module):
            program.refuse("A part of the model is compiled: its operators cannot be watched.")
        return _watching(torch, module, program)

    program.set_reason("No convolution with a bias fed a batch normalization alone.")
    program.around_forward(watch, until="forward")


def _watching(torch: Any, module: Any, program: Any) -> Any:
    """Return a context manager for one forward pass of `module`."""
    from torch.overrides import TorchFunctionMode

    flow = _Flow(torch, module)

    # Without torch, as mypy sees it, the base is Any; with it, it is not.
    class Watching(TorchFunctionMode):  # type: ignore[misc, unused-ignore]
        def __enter__(self) -> Any:
            # A compiled call would not run the hooks; this one forward runs as written.
            self.compiled = module.__dict__.pop("_compiled_call_impl", None)
            flow.attach()
            return super().__enter__()

        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = func(*args, **(kwargs or {}))
            flow.used(args, kwargs or {}, result)
            return result

        def __exit__(self, *error: Any) -> None:
            super().__exit__(*error)
            flow.detach()
            if self.compiled is not None:
                module._compiled_call_impl = self.compiled
            dropped = flow.drop_biases() if error[0] is None else 0
            if dropped:
                program.applied(convolutions=dropped)

    return Watching()


class _Flow:
    """The way of each convolution's output through one forward pass."""

    def __init__(self, torch: Any, module: Any) -> None:
        nn = torch.nn
        self._torch = torch
        self._convolution = nn.modules.conv._ConvNd
        self._norm = nn.modules.batchnorm._BatchNorm
        self._module = module
        self._handles: list[Any] = []
        self._made: dict[int, tuple[Any, Any]] = {}  # id of an output -> (output, its convolution)
        self._norms: dict[Any, set[Any]] = {}  # norm -> what fed it (None: something else)
        self._fed: dict[Any, set[Any]] = {}  # convolution -> the norms that it fed
        self._calls: dict[Any, int] = {}
        self._taken: dict[Any, int] = {}
        self._spoiled: set[Any] = set()  # convolutions whose output is also used elsewhere
        self._inside_norm = 0

    def attach(self) -> None:
        """Hook into convolutions and norms."""
        for child in self._module.modules():
            if isinstance(child, self._convolution) and child.bias is not None:
                self._handles.append(child.register_forward_hook(self._convolved))
            elif isinstance(child, self._norm):
                self._handles.append(child.register_forward_pre_hook(self._normalizes))
                self._handles.append(child.register_forward_hook(self._normalized))

    def detach(self) -> None:
        """Take the hooks away."""
        for handle in self._handles:
            handle.remove()

    def _convolved(self, module: Any, inputs: Any, output: Any) -> None:
        self._made[id(output)] = (output, module)
        self._calls[module] = self._calls.get(module, 0) + 1

    def _normalizes(self, norm: Any, inputs: Any) -> None:
        self._inside_norm += 1
        source = self._made.get(id(inputs[0])) if inputs else None
        convolution = source[1] if source is not None else None
        self._norms.setdefault(norm, set()).add(convolution)
        if convolution is not None:
            self._fed.setdefault(convolution, set()).add(norm)
            self._taken[convolution] = self._taken.get(convolution, 0) + 1

    def _normalized(self, norm: Any, inputs: Any, output: Any) -> None:
        self._inside_norm -= 1

    def used(self, args: Any, kwargs: Any, result: Any) -> None:
        """Note that a torch function makes a tensor of a watched output, which spoils it."""
        if self._inside_norm or not self._holds_tensor(result):
            return
        for value in (*_leaves(args), *_leaves(kwargs)):
            source = self._made.get(id(value))
            if source is not None:
                self._spoiled.add(source[1])

    def _holds_tensor(self, result: Any) -> bool:
        return any(isinstance(x, self._torch.Tensor) for x in _leaves(result))

    def drop_biases(self) -> int:
        """Drop the biases that cancel.

        Returns:
            How many convolutions lost their bias.
        """
        dropped = 0
        for convolution, norms in self._fed.items():
            alone = self._calls[convolution] == self._taken[convolution]
            if not alone or convolution in self._spoiled:
                continue
            if any(not n.training or self._norms[n] != {convolution} for n in norms):
                continue
            self._drop(convolution, norms)
            dropped += 1
        self._made.clear()
        return dropped

    def _drop(self, convolution: Any, norms: Any) -> None:
        bias = convolution.bias
        convolution.bias = None
        for norm in norms:
            if norm.running_mean is not None:
                # .data: the forward's graph may have kept the buffer with its version.
                norm.running_mean.data.sub_(bias.detach().to(norm.running_mean))


def _leaves(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _leaves(item)
    else:
        yield value


def instruction(settings: dict[str, Any], recording: Recording) -> str:
    """Return which argument to set, and where.

    No edit: without biases the layers take other random numbers when they are made, so the edited
    program would not train as the measured one did.
    """
    models = [m for m in training_models(recording) if m.conv_bias_before_norm]
    lines = []
    for model in models:
        name, count = model.cls.rpartition(".")[2], model.conv_bias_before_norm
        where = model.location
        numbers = convolutions_before_norm(where.file, where.line, count) if where else []
        lines += [
            f"{place(recording, Location(file=where.file, line=line), '')}  "
            "nn.Conv2d(..., bias=False)  # a batch normalization follows"
            for line in numbers
            if where is not None
        ]
        if not numbers:
            lines.append(
                f"{place(recording, where, name)}  {name}: nn.Conv2d(..., bias=False) for the "
                f"{count} convolutions right before a batch normalization"
            )
    return "\n".join(lines) or "nn.Conv2d(..., bias=False)  # right before nn.BatchNorm2d"


FIX = FixSpec(
    file=__file__,
    page=__doc__,
    treats=("conv-bias-before-norm",),
    keeps_results="within rounding",
    when="launch",
    p_helps=0.2,
    refuses=refuses,
    suits=convolves,
    apply=apply,
    instruction=instruction,
    example=Example(
        code="""
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(3, 4, 3)
        self.norm1 = torch.nn.BatchNorm2d(4)
        self.conv2 = torch.nn.Conv2d(4, 4, 3)  # its output does not go straight into the norm
        self.norm2 = torch.nn.BatchNorm2d(4)

    def forward(self, x):
        x = self.norm1(self.conv1(x))
        return self.norm2(torch.relu(self.conv2(x))).mean((2, 3))


torch.manual_seed(0)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
data = torch.utils.data.TensorDataset(torch.randn(16, 3, 8, 8), torch.randn(16, 4))
for x, y in torch.utils.data.DataLoader(data, batch_size=4):
    loss = (net(x) - y).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
net.eval()
print("biases:", net.conv1.bias is not None, net.conv2.bias is not None)
print("loss %.2f evaluation %.2f" % (loss.item(), net(data.tensors[0]).square().mean().item()))
""",
        without="""biases: True True
loss 1.23 evaluation 0.04""",
        with_fix="""biases: False True
loss 1.23 evaluation 0.04""",
    ),
)
