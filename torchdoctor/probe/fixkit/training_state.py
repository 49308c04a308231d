"""The training's state, put back to what it was: what the blocks of a ceiling did is undone.

Parameters, buffers, gradients, optimizers, learning-rate schedules, gradient scalers and the
global random generators. What the program keeps elsewhere (counters, sums, generators of its own,
the place in a data set) is not: nobody can know it, and the launch is thrown away.
"""

import copy
import gc
import random
import sys

from . import spare_memory


class TrainingState:
    """The state now; `put_back` writes it into the very tensors and containers that hold it.

    Args:
        torch: the user's torch module.
        modules: root modules.
        optimizers: all of them.

    Raises:
        Exception: out of memory, most likely; nothing was changed.
    """

    def __init__(self, torch, modules, optimizers):
        self._torch = torch
        self._seen = {}  # id(tensor) -> how it goes back: who is held twice is kept once
        self._back = []
        parameters = {}
        for module in modules:
            for part in module.modules():
                self._back += [self._kept(part._parameters), self._kept(part._buffers)]
            # Those of a scripted module lie in no dictionary.
            self._back += [
                self._kept(tensor) for tensor in [*module.parameters(), *module.buffers()]
            ]
            parameters.update((id(p), p) for p in module.parameters())
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                parameters.update((id(p), p) for p in group["params"])
            self._back += [self._kept(optimizer.param_groups), self._kept(optimizer.state)]
        self._gradients = [(p, p.grad, self._kept(p.grad)) for p in parameters.values()]
        for helper in _helpers(torch, optimizers):
            self._back.append(self._kept(helper.__dict__))
        self._back += self._generators()
        self._seen = {}

    def put_back(self):
        """Put everything back as it was."""
        for back in self._back:
            back()
        for parameter, gradient, back in self._gradients:
            back()
            parameter.grad = gradient

    def _kept(self, value):
        """Return a function that gives the value back as it is now."""
        torch = self._torch
        if isinstance(value, torch.Tensor):
            if id(value) not in self._seen:
                self._seen[id(value)] = _kept_tensor(value)
            return self._seen[id(value)]
        if isinstance(value, dict):
            items = [(key, self._kept(held)) for key, held in value.items()]

            def fill():
                value.clear()
                for key, back in items:
                    value[key] = back()
                return value

            return fill
        if isinstance(value, list):
            backs = [self._kept(held) for held in value]

            def refill():
                value[:] = [back() for back in backs]
                return value

            return refill
        if isinstance(value, (tuple, set)):
            kept = copy.copy(value)
            return lambda: kept
        return lambda: value

    def _generators(self):
        torch = self._torch
        states = [
            (torch.set_rng_state, torch.get_rng_state()),
            (random.setstate, random.getstate()),
        ]
        if torch.cuda.is_initialized():
            states.append((torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all()))
        numpy = sys.modules.get("numpy.random")
        if numpy is not None:
            states.append((numpy.set_state, numpy.get_state()))
        return [lambda put=put, state=state: put(state) for put, state in states]


def lacking(torch, modules, optimizers):
    """Return why a copy may leave a training step too little memory, as a sentence; None: it fits.

    On a GPU the step needs again what it took at most until now, this state included.
    """
    sizes = {}
    for tensor in _tensors(torch, modules, optimizers):
        sizes[tensor.device] = sizes.get(tensor.device, 0) + tensor.numel() * tensor.element_size()
    for device, size in sizes.items():
        free = None
        if device.type == "cuda":
            cuda = torch.cuda
            unused = cuda.memory_reserved(device) - cuda.max_memory_allocated(device)
            free = cuda.mem_get_info(device)[0] + unused
        elif device.type == "cpu":
            free = spare_memory.available_bytes()
        if free is not None and size > free:
            return (
                "A copy of the training's state takes %.1f GB, and beside a step %.1f are free."
                % (size / 1e9, max(free, 0) / 1e9)
            )
    return None


def _tensors(torch, modules, optimizers):
    """Return parameters, buffers, gradients and what optimizers keep, each once."""
    tensors = [x for module in modules for x in [*module.parameters(), *module.buffers()]]
    for optimizer in optimizers:
        tensors += [x for group in optimizer.param_groups for x in group["params"]]
        tensors += [
            x for state in optimizer.state.values() for x in getattr(state, "values", list)()
        ]
    tensors += [x.grad for x in tensors if isinstance(x, torch.Tensor) and x.grad is not None]
    return {id(x): x for x in tensors if isinstance(x, torch.Tensor)}.values()


def _kept_tensor(tensor):
    shared = any(n > 1 and not step for n, step in zip(tensor.shape, tensor.stride()))  # noqa: B905
    if shared or tensor.is_inference():
        return lambda: tensor  # nobody can write to it
    saved = tensor.detach().clone()

    def back():
        # By `data`: a graph that was kept for later must not find its tensor changed.
        tensor.data.copy_(saved)
        return tensor

    return back


def _helpers(torch, optimizers):
    """Return schedules of these optimizers, and gradient scalers."""
    schedulers, scalers = torch.optim.lr_scheduler.LRScheduler, torch.amp.GradScaler
    helpers = []
    for owner in gc.get_objects():
        cls = type(
            owner
        )  # never isinstance(): it would wake up the lazy proxies of other libraries
        try:
            if issubclass(cls, schedulers):
                if any(getattr(owner, "optimizer", None) is optimizer for optimizer in optimizers):
                    helpers.append(owner)
            elif issubclass(cls, scalers):
                helpers.append(owner)
        except TypeError:
            continue
    return helpers
