"""A program's float64 models in float32, with all that is computed from them up to the backward."""

import copy
import sys
import weakref

_WRAPPED = ("DistributedDataParallel", "FSDP", "FullyShardedDataParallel")


class SinglePrecision:
    """What became of each model, and whether what is computed now belongs to one of them."""

    def __init__(self, torch, program):
        self._torch, self._program = torch, program
        self._converted = weakref.WeakKeyDictionary()
        self._double, self._float = torch.float64, torch.float32
        self._tensor = torch.Tensor
        self._to = torch.Tensor.to
        self.open = 0  # passes from a forward to its backward
        self._steps = 0  # of optimizers, that run now
        self._has_gradients = False  # of this step: its closure was called

    def install(self):
        """Follow the optimizers: what a step has made of its closure's gradients none can reach."""

        def begin(*_):
            self._steps += 1
            self._has_gradients = False

        def backward():
            self._has_gradients = True

        def end(*_):
            self._steps -= 1

        hooks = sys.modules[self._torch.optim.Optimizer.__module__]
        self._program.before_backward(backward)
        hooks.register_optimizer_step_pre_hook(begin)
        hooks.register_optimizer_step_post_hook(end)

    def convert(self, module, args, kwargs):
        """The arguments of a model that was in float64, in float32; the model too, at first."""
        if module not in self._converted:
            if self._steps and self._has_gradients:
                return args, kwargs
            self._converted[module] = self._convert_model(module)
        if not self._converted[module]:
            return args, kwargs
        return self._cast(args), self._cast(kwargs)

    def _convert_model(self, module):
        program, modules = self._program, list(module.modules())
        tensors = [*module.parameters(), *module.buffers()]
        if not any(t.dtype is self._double for t in tensors):
            return False
        if any(t.is_complex() for t in tensors):
            program.refuse("The model has complex parameters or buffers: its precision is meant.")
        if any(type(m).__name__ in _WRAPPED for m in modules):
            program.refuse("The model is wrapped for data parallelism: convert it before.")
        before = [id(parameter) for parameter in module.parameters()]
        module._apply(self._cast)
        if [id(parameter) for parameter in module.parameters()] != before:
            # torch.__future__.set_overwrite_module_params_on_conversion(True)
            program.refuse("Converting replaced the parameters: the optimizer holds the old ones.")
        for optimizer in program.optimizers():
            for state in optimizer.state.values():
                for key, value in state.items():
                    # A count of steps has no dimension, and any type may hold it.
                    if not isinstance(value, self._tensor) or value.dim():
                        state[key] = self._cast(value)
        program.applied(parameters=sum(p.numel() for p in module.parameters()))
        return True

    def _cast(self, value):
        """A value with float32 in place of float64, through tuples, lists and dictionaries."""
        if isinstance(value, self._tensor):
            return self._to(value, self._float) if value.dtype is self._double else value
        if type(value) in (tuple, list):
            return type(value)(self._cast(item) for item in value)
        if isinstance(value, dict):
            changed = {key: self._cast(item) for key, item in value.items()}
            return changed if type(value) is dict else _like(value, changed)
        if type(value).__name__ == "PackedSequence":
            return value.to(self._float) if value.data.dtype is self._double else value
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*(self._cast(item) for item in value))
        return value

    def until_backward(self, module):
        """Of a forward that is trained with: the loss belongs to it."""
        if not self._converted.get(module) or not self._trains(module):
            return None
        return _Pass(self._torch, self)

    def within_forward(self, module):
        """Of any other forward."""
        if not self._converted.get(module) or self._trains(module):
            return None
        return _Pass(self._torch, self)

    def _trains(self, module):
        return bool(module.training and self._torch.is_grad_enabled())

    def conversion(self, old):
        """`Tensor.double`, `Tensor.to` or `Tensor.type` that gives float32 within a pass."""
        double, to, single = self._double, self._to, self._float
        if getattr(old, "__name__", "") == "double":

            def as_double(tensor, *args, **kwargs):
                return to(tensor, single) if self.open else old(tensor, *args, **kwargs)

            return as_double

        def convert(tensor, *args, **kwargs):
            if not self.open:
                return old(tensor, *args, **kwargs)
            args = tuple(single if a is double or _names_double(a) else a for a in args)
            if kwargs.get("dtype") is double:
                kwargs["dtype"] = single
            return old(tensor, *args, **kwargs)

        return convert

    def loss(self, old):
        """A loss whose float64 tensors become float32 beside others that are."""

        def loss(*args, **kwargs):
            given = [x for x in (*args, *kwargs.values()) if isinstance(x, self._tensor)]
            kinds = {x.dtype for x in given} if self.open else set()
            if self._double not in kinds or self._float not in kinds:
                return old(*args, **kwargs)
            return old(*self._cast(args), **self._cast(kwargs))

        return loss


def _names_double(value):
    """Whether it is `torch.DoubleTensor` or its name, as `Tensor.type` takes them."""
    return isinstance(value, (str, type)) and "DoubleTensor" in str(value)


class _Pass:
    """float32 is the default in it, where the program made float64 the default."""

    def __init__(self, torch, single):
        self._torch, self._single = torch, single
        self._before = None

    def __enter__(self):
        self._before = self._torch.get_default_dtype()
        if self._before is self._torch.float64:
            self._torch.set_default_dtype(self._torch.float32)
        self._single.open += 1

    def __exit__(self, *_):
        self._single.open -= 1
        if self._before is self._torch.float64:
            self._torch.set_default_dtype(self._before)


def _like(old, changed):
    """A dictionary of a class of its own (an OrderedDict, a BatchEncoding) with other values."""
    new = copy.copy(old)
    for key, value in changed.items():
        new[key] = value
    return new
