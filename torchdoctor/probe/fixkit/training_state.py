"""The training's state, put back to what it was: what the blocks of a ceiling did is undone.

Parameters, gradients, optimizers, schedules, scalers and the global random generators; what the
program keeps elsewhere nobody can know, and the launch is thrown away.
"""

import copy
import gc

from ..accelerator import Accelerator
from ..reasons import reason
from . import random_states, spare_memory


class TrainingState:
    """The state now of root modules and optimizers, copied; `put_back` writes it where it was."""

    def __init__(self, torch, modules, optimizers):
        self._torch = torch
        self._seen = {}  # id(tensor) -> how it goes back: who is held twice is kept once
        parameters = [
            p for optimizer in optimizers for g in optimizer.param_groups for p in g["params"]
        ]
        held = []
        for module in modules:
            held += [
                tensors
                for part in module.modules()
                for tensors in (part._parameters, part._buffers)
            ]
            # Those of a scripted module lie in no dictionary.
            held += [*module.parameters(), *module.buffers()]
            parameters += module.parameters()
        for optimizer in optimizers:
            held += [optimizer.param_groups, optimizer.state]
        held += [helper.__dict__ for helper in _helpers(torch, optimizers)]
        self._back = [self._kept(value) for value in held]
        parameters = {id(p): p for p in parameters}.values()
        self._gradients = [(p, p.grad, self._kept(p.grad)) for p in parameters]
        states = random_states.global_states(torch)
        self._back.append(lambda: random_states.restore(torch, states))
        accelerator = Accelerator(torch)
        if accelerator.is_used() and hasattr(accelerator.module, "get_rng_state_all"):
            on_devices = accelerator.module.get_rng_state_all()
            self._back.append(lambda: accelerator.module.set_rng_state_all(on_devices))
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

            def refill():
                value.clear()
                value.update((key, back()) for key, back in items)
                return value

            return refill
        if isinstance(value, list):
            backs = [self._kept(held) for held in value]

            def fill():
                value[:] = [back() for back in backs]
                return value

            return fill
        kept = copy.copy(value) if isinstance(value, (tuple, set)) else value
        return lambda: kept


def lacking(torch, modules, optimizers):
    """Return why a copy may leave a step too little memory (peak and copy), or None: it fits."""
    sizes = {}
    for tensor in _tensors(torch, modules, optimizers):
        sizes[tensor.device] = sizes.get(tensor.device, 0) + tensor.numel() * tensor.element_size()
    for device, size in sizes.items():
        free = None
        if device.type == "cpu":
            free = spare_memory.available_bytes()
        elif hasattr(module := torch.get_device_module(device), "mem_get_info"):
            unused = module.memory_reserved(device) - module.max_memory_allocated(device)
            free = module.mem_get_info(device)[0] + unused
        if free is not None and size > free:
            return reason("no-memory-for-state", copy_gb=size / 1e9, free_gb=max(free, 0) / 1e9)
    return None


def _tensors(torch, modules, optimizers):
    """Return parameters, buffers, gradients and what optimizers keep, each once."""
    values = [tensor for module in modules for tensor in [*module.parameters(), *module.buffers()]]
    for optimizer in optimizers:
        values += [parameter for group in optimizer.param_groups for parameter in group["params"]]
        for state in optimizer.state.values():
            values += getattr(state, "values", list)()
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    return {
        id(kept): kept
        for kept in [*tensors, *(tensor.grad for tensor in tensors)]
        if kept is not None
    }.values()


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
    schedulers = torch.optim.lr_scheduler.LRScheduler
    scalers = torch.amp.GradScaler
    helpers = []
    for owner in gc.get_objects():
        cls = type(owner)  # never isinstance(): it would wake up lazy proxies of other libraries
        try:
            if issubclass(cls, scalers) or (
                issubclass(cls, schedulers)
                and any(getattr(owner, "optimizer", None) is optimizer for optimizer in optimizers)
            ):
                helpers.append(owner)
        except TypeError:
            continue
    return helpers
