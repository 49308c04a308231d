"""Loss scaling for float16, as `torch.amp.GradScaler` does it, without a line of the program's.

Gradients are divided by the scale as soon as the pass has ended: what the program does with them
before the step (clipping, logging) sees them as they are. A step with an infinity or a NaN is left
out and the scale halved; after 2000 whole steps it is doubled, by GradScaler's own kernel.
"""

import sys
import weakref
from collections import defaultdict

# torch.amp.GradScaler's defaults.
_INITIAL = 2.0**16
_GROWTH = 2.0
_BACKOFF = 0.5
_GROWTH_INTERVAL = 2000


class GradientScaling:
    """Scales every backward pass while its fix is on, or refuses where gradients look alike."""

    def __init__(self, torch, program):
        self._torch = torch
        self._program = program
        self._roots = weakref.WeakSet()
        self._known = None  # what `_parameters_now` was made of
        self._parameters = []
        self.scale = _INITIAL
        self.skipped_steps = 0
        self._whole_steps = 0
        self._scaled = None  # of the pass in progress
        self._overflows = {}  # device -> 1.0 where a gradient since the last step was not finite
        self._suspects = set()  # ids of optimizers whose gradients may be left of an overflow
        self._held = []  # gradients kept from a step that is left out

    def install(self):
        """Hook backward passes, optimizer steps, and a scaler of the program's own."""
        torch = self._torch
        program = self._program
        program.replace(torch.autograd, "backward", self._around_backward)
        program.replace(torch.amp.GradScaler, "scale", self._refuse_another)
        hooks = sys.modules[torch.optim.Optimizer.__module__]
        hooks.register_optimizer_step_pre_hook(self._before_step)
        hooks.register_optimizer_step_post_hook(self._restore)

    def follow(self, module):
        """Unscale the gradients of a root module's parameters too."""
        self._roots.add(module)

    def _refuse_another(self, old):
        def scale(scaler, *args, **kwargs):
            if scaler.is_enabled():
                self._program.guarded(self._program.refuse, "scales-gradients-itself")
            return old(scaler, *args, **kwargs)

        return scale

    def _around_backward(self, old):
        guarded = self._program.guarded

        def backward(tensors, *args, **kwargs):
            scaled = guarded(self._begin, tensors, args, kwargs)
            if scaled is None:
                return old(tensors, *args, **kwargs)
            try:
                return old(scaled, *args, **kwargs)
            finally:
                guarded(self._end)

        return backward

    def _begin(self, tensors, args, kwargs):
        """Return the tensors times the scale; None where this pass is left alone."""
        program = self._program
        if not program.usable or self._scaled is not None:
            return None
        if kwargs.get("create_graph") or (len(args) > 2 and args[2]):
            program.refuse("backward-differentiated")
        if kwargs.get("inputs") is not None:
            program.refuse("gradients-of-chosen-tensors")
        parameters = self._parameters_now()
        if not program.optimizers():
            program.refuse("no-optimizer-to-hold-back")
        if any(p.dtype == self._torch.float16 for p in parameters):
            program.refuse("parameters-in-float16")
        # What earlier micro-batches left is divided with the rest after the pass.
        earlier = self._gradients()
        if earlier:
            self._torch._foreach_mul_(earlier, self.scale)
        self._scaled = self.scale
        if isinstance(tensors, (tuple, list)):
            return type(tensors)(self._times(tensor) for tensor in tensors)
        return self._times(tensors)

    def _times(self, tensor):
        # A float32 tensor of no dimensions makes a float16 loss float32; a Python number would not.
        torch = self._torch
        return tensor * torch.full((), self.scale, dtype=torch.float32, device=tensor.device)

    def _end(self):
        scale, self._scaled = self._scaled, None
        torch = self._torch
        groups = defaultdict(list)
        for gradient in self._gradients():
            groups[gradient.device, gradient.dtype].append(gradient)
        for (device, _), gradients in groups.items():
            overflow = self._overflows.get(device)
            if overflow is None:
                overflow = self._overflows[device] = torch.zeros((), device=device)
            inverse = torch.full((), 1.0 / scale, dtype=torch.float32, device=device)
            torch._amp_foreach_non_finite_check_and_unscale_(gradients, overflow, inverse)

    def _gradients(self):
        return [_values(p.grad) for p in self._parameters if p.grad is not None]

    def _parameters_now(self):
        optimizers = self._program.optimizers()
        roots = list(self._roots)
        counts = [(id(o), sum(len(g["params"]) for g in o.param_groups)) for o in optimizers]
        counts.append(len(roots))
        if counts != self._known:
            self._known = counts
            parameters = [p for o in optimizers for g in o.param_groups for p in g["params"]]
            parameters += [p for module in roots for p in module.parameters()]
            self._parameters = list({id(p): p for p in parameters}.values())
        return self._parameters

    def _before_step(self, optimizer, args, kwargs):
        if self._program.on and self._program.usable:
            self._program.guarded(self._look, optimizer, args, kwargs)

    def _look(self, optimizer, args, kwargs):
        """Leave the step out where its gradients are not finite."""
        # `args` of the hook hold the optimizer itself first.
        if kwargs.get("closure") is not None or any(callable(arg) for arg in args[1:]):
            self._program.refuse("gradients-within-step")
        self._restore()
        if any(overflow.item() for overflow in self._overflows.values()):
            self._overflows.clear()
            self.scale = max(self.scale * _BACKOFF, 1.0)
            self._whole_steps = 0
            self._suspects = {id(optimizer) for optimizer in self._program.optimizers()} | {
                id(optimizer)
            }
        else:
            self._whole_steps += 1
            if self._whole_steps >= _GROWTH_INTERVAL:
                self.scale, self._whole_steps = self.scale * _GROWTH, 0
        if id(optimizer) not in self._suspects:
            return
        self._suspects.discard(id(optimizer))
        owned = [p for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
        if all(bool(_values(p.grad).isfinite().all()) for p in owned):
            return  # they were cleared since
        # torch's optimizers pass over a parameter without a gradient: state and all stay.
        self._held = [(p, p.grad) for p in owned]
        for p in owned:
            p.grad = None
        self.skipped_steps += 1
        self._program.applied(skipped_steps=self.skipped_steps, scale=self.scale)

    def _restore(self, *_):
        """Put back the gradients kept from the step: the program may look at them."""
        for parameter, gradient in self._held:
            if parameter.grad is None:
                parameter.grad = gradient
        self._held = []


def _values(gradient):
    return gradient._values() if gradient.is_sparse else gradient
