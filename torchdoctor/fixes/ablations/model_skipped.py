"""The training loop without forward and backward: how fast its input pipeline is by itself.

Each training forward of a root module gives what the same kind of call (inputs of these shapes)
gave before, no backward is run, gradients are zeros, and the optimizer finds none. Losses are
computed on those outputs, and evaluation is left alone.
"""

from typing import Any

from torchdoctor.queries.lookup import phase_share, training_models
from torchdoctor.schema import AblationSpec, Branch, Recording, Settings

_MOST_SHAPES = 8  # of inputs; more, and forwards are hardly ever skipped
_EVALUATION = 0.05  # of the step: with more, what is left alone is a part of the branch


def branch(recording: Recording) -> Branch:
    return "gpu" if recording.has_gpu else "cpu"


def share(recording: Recording) -> float | None:
    """Return the share of the step that computes the model, the host's work for a GPU included."""
    shares = recording.shares
    if not recording.has_gpu:
        return shares.cpu
    if shares.gpu is None:
        return None
    return min(shares.gpu + (shares.cpu or 0.0) + (shares.runtime or 0.0), 1.0)


def settings(recording: Recording) -> dict[str, Any] | None:
    """Return None if no model trains by backward passes: such an iteration would never begin."""
    steps = recording.steps
    if steps is None or steps.boundary.learned_by != "backward":
        return None
    return {} if training_models(recording) else None


def apply(torch: Any, settings: Settings, program: Any) -> None:
    skipped = _Skipped(torch, program)
    program.set_reason("no-forward-left-out")
    program.restore_training()
    program.at_first_batch(skipped.start, skipped.forget)
    program.at("iteration", skipped.next_iteration)
    program.around_model(skipped.answer, skipped.keep)
    program.at("instead of backward", skipped.backward)
    program.at("gradients", skipped.gradients)
    program.at("step", skipped.without_gradients)


class _Skipped:
    """Outputs of forwards by module, shapes of the inputs and number within the iteration."""

    def __init__(self, torch: Any, program: Any) -> None:
        self.torch = torch
        self.program = program
        self.tree = torch.utils._pytree
        self.forget()

    def forget(self) -> None:
        self.outputs: dict[Any, Any] = {}
        self.shapes: set[Any] = set()
        self.counts: dict[Any, int] = {}
        self.zeros: list[tuple[Any, Any]] = []
        self.skipping = False

    def start(self) -> None:
        """Make zeros for gradients beforehand: if memory is short, nothing is skipped."""
        groups = [
            group for optimizer in self.program.optimizers() for group in optimizer.param_groups
        ]
        wanted = {id(p): p for group in groups for p in group["params"] if p.requires_grad}
        self.zeros = [(p, self.torch.zeros_like(p)) for p in wanted.values()]

    def next_iteration(self) -> None:
        """Begin the numbers of the forwards again."""
        self.counts.clear()

    def key(self, module: Any, args: Any, kwargs: Any) -> Any:
        """Return the key of the kept output, or None to leave a forward alone."""
        torch = self.torch
        if not torch.is_grad_enabled() or not module.training or not self.program.usable:
            return None
        leaves = self.tree.tree_leaves((args, kwargs))
        return (
            id(module),
            *(tuple(leaf.shape) for leaf in leaves if isinstance(leaf, torch.Tensor)),
        )

    def answer(self, module: Any, args: Any, kwargs: Any) -> tuple[Any] | None:
        """Return a copy of the kept output: the program may change what it gets."""
        key = self.key(module, args, kwargs)
        if key is None:
            return None
        number = self.counts[key] = self.counts.get(key, -1) + 1
        if (number, key) not in self.outputs:
            return None
        self.skipping = True
        self.program.applied()
        clone = self.torch.Tensor.clone
        return (self.tree.tree_map_only(self.torch.Tensor, clone, self.outputs[number, key]),)

    def keep(self, module: Any, args: Any, kwargs: Any, output: Any) -> None:
        key = self.key(module, args, kwargs)
        torch = self.torch
        if key is None:
            return
        self.shapes.add(key)
        if len(self.shapes) > _MOST_SHAPES:
            self.program.refuse("input-shapes-vary")
        tensors = [
            tree_leaf
            for tree_leaf in self.tree.tree_leaves(output)
            if isinstance(tree_leaf, torch.Tensor)
        ]
        if not any(tensor.requires_grad for tensor in tensors):
            return  # nothing is learned from it, or an output of a kind that is not known

        def leaf(value: Any) -> Any:
            return value.detach().clone().requires_grad_(value.requires_grad)

        kept = self.tree.tree_map_only(torch.Tensor, leaf, output)
        self.outputs[self.counts.get(key, 0), key] = kept

    def backward(self, tensors: Any) -> bool:
        """Return True to skip the backward of a skipped forward: gradients are zeros."""
        if not self.skipping or not self.program.usable:
            return False
        for parameter, zero in self.zeros:
            if parameter.grad is None:
                parameter.grad = zero
        return True

    def gradients(self, args: Any, kwargs: Any) -> tuple[Any] | None:
        """Return `torch.autograd.grad` of a graph that no longer reaches the inputs."""
        if not self.skipping or not self.program.usable:
            return None
        inputs = args[1] if len(args) > 1 else kwargs["inputs"]
        several = inputs if isinstance(inputs, (list, tuple)) else (inputs,)
        follows = bool(kwargs.get("create_graph") or (len(args) > 4 and args[4]))
        return (tuple(self.torch.zeros_like(tensor).requires_grad_(follows) for tensor in several),)

    def without_gradients(self) -> None:
        """Take gradients away: an optimizer that finds none has nothing to do."""
        if self.skipping and self.program.usable:
            for parameter, _ in self.zeros:
                parameter.grad = None


ABLATION = AblationSpec(
    whole=lambda recording: (phase_share(recording, "evaluation_s") or 0.0) < _EVALUATION,
    removes="forward, backward and updates",
    by_own_loader=True,  # its steps are as long as the loader takes
    branch=branch,
    share=share,
    settings=settings,
    apply=apply,
    sentences={
        "no-forward-left-out": "No model's forward could be left out.",
        "input-shapes-vary": "Its model's inputs have ever other shapes.",
    },
)
