"""Drop the bias of a convolution that a batch normalization follows.

## What it does
Watches one training forward pass for convolutions whose output goes into a batch normalization and
nowhere else, and takes their bias away. The running mean of the normalization is shifted by the
same amount, so that evaluation computes what it did before.

## Why it helps
A batch normalization subtracts the mean of each channel, so a bias before it cancels. It costs a
reduction over the whole output, a small kernel, and one more tensor for the optimizer.

## Risks
The bias cancels up to rounding. Checkpoints lack its key: an older one loads with `strict=False`,
and then the running mean holds the old bias.

## Make it permanent
    nn.Conv2d(64, 128, kernel_size=3, bias=False), nn.BatchNorm2d(128)

## Sources
- PyTorch Tuning Guide: https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
"""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torchdoctor.queries.lookup import convolves, place, training_models
from torchdoctor.queries.touched import convolution_biases
from torchdoctor.schema import Evidence, Example, FixSpec, Recording, Settings, fact


def refuses(recording: Recording) -> Evidence | None:
    models = [m for m in training_models(recording) if m.conv_bias_before_norm]
    if not models:
        return fact("no-bias-before-norm")
    if any(m.compiled for m in models):
        return fact("compiled")
    wrapped = next((m.data_parallel for m in models if m.data_parallel), None)
    if wrapped is not None:
        return fact("wrapped", wrapper=wrapped)
    return None


def apply(torch: Any, settings: Settings, program: Any) -> None:
    done: weakref.WeakSet[Any] = weakref.WeakSet()

    def drop(module: Any, output: Any) -> None:
        cancelled = _cancelled(torch, module, output)
        for convolution, norms in cancelled:
            bias, convolution.bias = convolution.bias, None
            for norm in norms:
                if norm.running_mean is not None:
                    # .data: the forward's graph may have kept the buffer with its version.
                    norm.running_mean.data.sub_(bias.detach().to(norm.running_mean))
        if cancelled:
            program.applied(convolutions=len(cancelled))

    @contextmanager
    def looking(module: Any) -> Iterator[None]:
        # The graph of a compiled call shows no operators: this one forward runs as written.
        attributes = vars(module)
        kept = {name: attributes.pop(name) for name in _compiled_calls(module)}
        if "forward" in kept:
            module.forward = _as_written(kept["forward"])
        hook = module.register_forward_hook(lambda m, _, output: program.guarded(drop, m, output))
        try:
            yield
        finally:
            hook.remove()
            attributes.update(kept)

    def look(module: Any) -> Any:
        if module in done or not module.training or not torch.is_grad_enabled():
            return None
        done.add(module)
        modules = list(module.modules())
        if any("Parallel" in type(m).__name__ for m in modules):
            program.refuse("wrapped-for-parallelism")
        if any(_compiled_calls(m) for m in modules if m is not module):
            program.refuse("part-is-compiled")
        return looking(module)

    program.set_reason("no-bias-fed-norm")
    program.around_forward(look, until="forward")


def _compiled_calls(module: Any) -> list[str]:
    """Return the attributes of a module's own by which a call runs what is compiled."""
    attributes = vars(module)
    names = ["_compiled_call_impl"] if attributes.get("_compiled_call_impl") else []
    return [*names, "forward"] if _as_written(attributes.get("forward")) else names


def _as_written(forward: Any) -> Any:
    """Return the function that `torch.compile` was given; None: it is not compiled."""
    return getattr(forward, "_torchdynamo_orig_callable", None)


def _cancelled(torch: Any, module: Any, output: Any) -> list[tuple[Any, set[Any]]]:
    """Return the convolutions whose bias cancels, each with the norms that alone use its output."""
    owners = _owners(torch, module)

    def convolution_of(node: Any) -> Any:
        return _owner(owners, node, "Convolution", argument=2)

    def norm_of(node: Any) -> Any:
        return _owner(owners, node, "BatchNorm", argument=1)

    users = _users(torch, output)
    fed: dict[Any, set[Any]] = {}  # by convolution: the norms, and None for any other user
    sources: dict[Any, set[Any]] = {}  # by norm: the convolutions, and None for any other source
    for node, its_users in users.items():
        convolution = convolution_of(node)
        if convolution:
            fed.setdefault(convolution, set()).update(map(norm_of, its_users))
        norm = norm_of(node)
        if norm:
            source = node.next_functions[0][0]
            sources.setdefault(norm, set()).add(convolution_of(source))
    return [
        (convolution, norms)
        for convolution, norms in fed.items()
        if all(norm and norm.training and sources[norm] == {convolution} for norm in norms)
    ]


def _owners(torch: Any, module: Any) -> dict[int, Any]:
    """Return the convolutions by their bias, and the batch norms by their weight."""
    modules = torch.nn.modules
    owners = {}
    for child in module.modules():
        if isinstance(child, modules.conv._ConvNd):
            owners[id(child.bias)] = child
        elif isinstance(child, modules.batchnorm._BatchNorm):
            owners[id(child.weight)] = child
    return owners


def _owner(owners: dict[int, Any], node: Any, kind: str, argument: int) -> Any:
    """Return the module of a node in the graph; None: it is of another kind."""
    if node is None or kind not in type(node).__name__:
        return None
    source = node.next_functions[argument][0]
    while source is not None and not hasattr(source, "variable"):  # autocast's casts
        source = next((input_node for input_node, _ in source.next_functions), None)
    return source and owners.get(id(source.variable))


def _users(torch: Any, output: Any) -> dict[Any, set[Any]]:
    """Return each node of the graph with the nodes that use it; None: the program itself."""
    leaves = torch.utils._pytree.tree_leaves(output)
    pending = [
        leaf.grad_fn
        for leaf in leaves
        if isinstance(leaf, torch.Tensor) and leaf.grad_fn is not None
    ]
    users: dict[Any, set[Any]] = {node: {None} for node in pending}
    walked = set()
    while pending:
        node = pending.pop()
        if node in walked:
            continue
        walked.add(node)
        for source, _ in node.next_functions:
            if source is not None:
                users.setdefault(source, set()).add(node)
                pending.append(source)
    return users


def instruction(settings: Settings, recording: Recording) -> str:
    """Return which argument to set, and where.

    No edit: without biases the layers take other random numbers when they are made, so the edited
    program would not train as the measured one did.
    """
    lines = []
    for model in training_models(recording):
        count = model.conv_bias_before_norm
        name = model.cls.rpartition(".")[2]
        if count:
            lines.append(
                f"{place(recording, model.location, name)}  {name}: nn.Conv2d(..., bias=False) for "
                f"the {count} convolutions right before a batch normalization"
            )
    return "\n".join(lines) or "nn.Conv2d(..., bias=False)  # right before nn.BatchNorm2d"


FIX = FixSpec(
    name="no bias before batch norm",
    treats=("conv-bias-before-norm",),
    keeps_results="within rounding",
    p_helps=0.2,
    touches=convolution_biases,
    refuses=refuses,
    sentences={
        "wrapped": "The model is wrapped in {wrapper}, which expects the parameters it was given.",
        "no-bias-before-norm": "No convolution with a bias stands right before a batch "
        "normalization.",
        "compiled": "The model is compiled, so its operators cannot be watched: drop it in the "
        "source.",
        "wrapped-for-parallelism": "The model is wrapped for data parallelism.",
        "part-is-compiled": "A part of the model is compiled: its operators cannot be watched.",
        "no-bias-fed-norm": "No convolution with a bias fed a batch normalization alone.",
    },
    suits=convolves,
    apply=apply,
    instruction=instruction,
    example=Example(
        code="""
torch.manual_seed(0)
Conv2d, BatchNorm2d = torch.nn.Conv2d, torch.nn.BatchNorm2d
layers = [Conv2d(3, 4, 3), BatchNorm2d(4), Conv2d(4, 4, 3), torch.nn.ReLU(), BatchNorm2d(4)]
net = torch.nn.Sequential(*layers, torch.nn.AvgPool2d(4), torch.nn.Flatten())
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
data = torch.utils.data.TensorDataset(torch.randn(16, 3, 8, 8), torch.randn(16, 4))
for x, y in torch.utils.data.DataLoader(data, batch_size=4):
    loss = (net(x) - y).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
net.eval()
print("biases:", net[0].bias is not None, net[2].bias is not None)
print("loss %.2f evaluation %.2f" % (loss.item(), net(data.tensors[0]).square().mean().item()))
""",
        without="biases: True True\nloss 1.23 evaluation 0.04",
        with_fix="biases: False True\nloss 1.23 evaluation 0.04",
    ),
)
