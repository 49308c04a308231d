"""Programs that infer: outermost calls of models count, where no gradient is ever computed.

No loader, optimizer or backward shows when the models are there to be found, so the first call of
any module does: until then `nn.Module.__call__` is ours.
"""

import functools
import time
import weakref

from .. import dynamo_frames, wrapping
from ..measure.decisions import Decisions
from ..measure.nested import holds_numbers

_FEWEST_CALLS, _LEAST_NS = 5, 3_000_000_000  # without a gradient: the program infers
_FIRST_CALLS = 2  # in which much is made ready
_MOST_OUTPUTS = 256  # that are compared
_MOST_ELEMENTS = 65_536  # of an output
_MOST_LEAVES = 4
_VAIN_CALLS = 4_096  # of modules that no scan found
_COMPILERS = ("torch._dynamo", "torch._inductor", "torch.fx")  # which make modules of their own
_LATER_LOOKS = 4  # for models that are made after the first call


class Inference:
    """Whether a process infers, and what its models give.

    `wanted`: the plan says that it does; `looks`: it may turn out to; `on`: a call counts.
    """

    def __init__(self, session):
        self._session = session
        boundary = session.plan.get("boundary") or {}
        self.wanted = self.on = boundary.get("learned_by") == "forward"
        self.looks = self.wanted or session.plan.get("purpose") == "observe"
        self.when_trains = []  # what to call when it is known that the program trains
        self._calls = 0
        self._began_ns = None
        self._outputs = 0
        self._weights = None
        self._decisions = Decisions(session) if self.wanted else None

    def install(self):
        """Look for the models at the first call of any module."""
        if self.looks:
            FirstCall(self._session).arm()

    def trains(self):
        """Note that something is learned: an evaluation was no inference."""
        for function in self.when_trains:
            function()
        self.on = self.looks = self.wanted

    def begins(self, ident):
        """Note that the outermost call of a root module begins."""
        window = self._session.window
        if window.kind == "forward":
            window.event("forward", ident)

    def ended(self, output):
        """Note that the outermost call of a root module has ended."""
        if not self._goes_on():
            return
        if self.wanted:
            self._keep(output)
        self._session.inferred(time.perf_counter_ns())

    def may_infer(self):
        """Return whether models are called and nothing was learned so far, past the first calls."""
        return self.looks and self._calls >= _FIRST_CALLS

    def called(self):
        """Note that a known entry point was called, which may not show the model's own calls."""
        if self._goes_on():
            self._session.inferred(time.perf_counter_ns())

    def _goes_on(self):
        """Return whether the program infers, by its calls so far."""
        session = self._session
        now = time.perf_counter_ns()
        if not self.on and self.looks:
            self._calls += 1
            self._began_ns = self._began_ns or now
            enough = self._calls >= _FEWEST_CALLS and now - self._began_ns >= _LEAST_NS
            # An optimizer that has not stepped yet is that of a training to come.
            if enough and not session.optimizers.alive():
                self.on = True
                session.models.scan()  # for those that were made since
        return self.on

    def _keep(self, output):
        """Keep one number of an output, by which launches are compared."""
        self._outputs += 1
        leaves = self._plain_leaves(output) if self._outputs <= _MOST_OUTPUTS else []
        digest = self._digest(leaves)
        self._session.losses.keep(() if digest is None else (digest,))
        if leaves:
            self._decisions.keep(self._outputs, leaves[0])

    def _plain_leaves(self, output):
        torch = self._session.torch
        return [
            tree_leaf
            for tree_leaf in torch.utils._pytree.tree_leaves(output)
            if _is_plain(torch, tree_leaf)
        ]

    def _digest(self, leaves):
        """Return the figure of an output by its tensors; None: it has none."""
        torch = self._session.torch
        total = None
        with torch.no_grad():
            for leaf in leaves[:_MOST_LEAVES]:
                values = leaf.detach().reshape(-1)
                values = values[:: max(-(-len(values) // _MOST_ELEMENTS), 1)]
                # In single precision the sum would hide what rounding changed.
                values = values.to(torch.float32 if leaf.device.type == "mps" else torch.float64)
                part = torch.dot(values, self._weights_of(values))
                total = part if total is None else total + part.to(total.device)
        return total

    def _weights_of(self, values):
        """Return numbers that make each element count differently, near 1."""
        torch = self._session.torch
        weights = self._weights
        if weights is None or len(weights) < len(values) or weights.device != values.device:
            numbers = torch.arange(len(values), device=values.device, dtype=values.dtype)
            weights = self._weights = 1.0 + 0.5 * torch.cos(numbers * 1.7)
        return weights[: len(values)]


def _is_plain(torch, value):
    if not isinstance(value, torch.Tensor) or not holds_numbers(value, torch):
        return False
    plain = value.layout == torch.strided and not value.is_complex() and not value.is_quantized
    return plain and value.numel() > 0


class FirstCall:
    """Stands for `nn.Module.__call__` until a call of a root module was seen.

    It does so again where a model is made later, of a class that no call was seen of.
    """

    def __init__(self, session):
        self._session = session
        self._models = session.models
        self._class = session.torch.nn.Module
        self._old = self._new = None
        self._calls = 0
        self._unknown = []  # (reference, begin, end, flags): calls of what no scan found, so far
        self._open = False
        self._over = False
        self._later_looks = 0

    def arm(self):
        """Take the place of `nn.Module.__call__`."""
        self._old = self._class.__call__
        self._new = functools.wraps(self._old)(dynamo_frames.pass_through(self._around(self._old)))
        self._class.__call__ = self._new
        self._models.first_call = self
        wrapping.wrap(self._class, "__init__", self._noting_made)

    def _noting_made(self, old):
        made = self._session.guarded(self._made)

        def __init__(module, *args, **kwargs):
            made(module)
            old(module, *args, **kwargs)

        return __init__

    def _made(self, module):
        if not self._over or self._later_looks >= _LATER_LOOKS or self._models.nesting.calls:
            return
        may_infer = self._session.inference.looks and self._models.may_infer
        cls = type(module)
        if not may_infer or self._models.wraps(cls) or cls.__module__.startswith(_COMPILERS):
            return
        self._later_looks += 1
        self._calls = 0
        self._over = False
        self._models.await_again(self)
        self._rearm()

    def __enter__(self):
        """Give the place back while classes are wrapped, whose wrappers keep what they find."""
        self._disarm()

    def __exit__(self, *_):
        if not self._open:
            self._rearm()

    def _rearm(self):
        if not self._is_over() and self._class.__dict__.get("__call__") is self._old:
            self._class.__call__ = self._new

    def end(self):
        """Give the place back for good: a root module is called."""
        self._over = True
        self._disarm()

    def calls_of(self, module):
        """Return begin, end and flags of each call of a module from before a scan found it."""
        return [call for reference, *call in self._unknown if reference() is module]

    def _disarm(self):
        if self._class.__dict__.get("__call__") is self._new:
            self._class.__call__ = self._old

    def _is_over(self):
        over = self._over or self._calls > _VAIN_CALLS
        return over or not self._session.inference.looks

    def _look(self, module):
        session = self._session
        models = self._models
        if self._is_over():
            self._disarm()
            return
        self._calls += 1
        if self._calls == 1:
            session.entries.look_again()
        if self._calls & (self._calls - 1) == 0:  # 1, 2, 4, 8 ...
            models.scan()
        if self._calls >= _FEWEST_CALLS and models.root_of(module) is None:
            models.take(module)  # a part of another one, which is never called as a whole
        if session.inference.wanted:
            session.first_batch()

    def _begins(self, module):
        """Return what to note of a call once it has ended: of a module that no scan found."""
        models = self._models
        inference = self._session.inference
        if self._is_over() or self._calls >= _FEWEST_CALLS or models.root_of(module) is not None:
            return None
        if self._later_looks:
            return None  # its number is not known
        if next(iter(module.parameters()), None) is None:
            return None
        if not self._unknown or self._unknown[0][0]() is module:
            inference.begins(0)  # the number that it has once it is known: none was called before
        return weakref.ref(module), time.perf_counter_ns(), models.call_flags(module)

    def _ended(self, begun, output):
        if begun is None or self._is_over():
            return  # the call was one of a root module, or had one within
        reference, began_ns, flags = begun
        self._unknown.append((reference, began_ns, time.perf_counter_ns(), flags))
        self._session.inference.ended(output)

    def _around(self, old):
        session, models, look = self._session, self._models, self._session.guarded(self._look)
        begins, ended = session.guarded(self._begins), session.guarded(self._ended)
        compiling = session.torch.compiler.is_dynamo_compiling
        tracing = session.torch.jit.is_tracing  # it compares the classes of two passes

        def __call__(module, /, *args, **kwargs):
            if compiling() or tracing() or self._open or not session.on:
                return old(module, *args, **kwargs)
            look(module)
            call = type(module).__call__ if models.wraps(type(module)) else old
            self._open = True
            # What is compiled during the call would guard on this function, and be compiled again.
            self._disarm()
            begun = begins(module)
            try:
                output = call(module, *args, **kwargs)
                ended(begun, output)
                return output
            except BaseException as error:
                session.hide_frames(error)
                raise
            finally:
                self._open = False
                self._rearm()

        return __call__
