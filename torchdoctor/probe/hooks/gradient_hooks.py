"""Gradients that are computed without a backward: `torch.autograd.grad`, also by torch.func.

Where a program makes no backward pass, the calls of one kind are its backward passes. A launch that
observes logs each call with its kind, and the plan of later ones names what counts.
"""

from threading import get_ident

from .. import places, step_log, wrapping
from .scaled_losses import first_of

_PLAIN, _FUNCTIONAL, _PARTIAL = range(len(step_log.GRADIENT_CALLS))


class _Kinds:
    """Tells calls of `torch.autograd.grad` apart, by arguments and the transforms around them."""

    def __init__(self, torch):
        self._modes = torch._C._len_torch_dispatch_stack
        self._mode = torch._C._get_dispatch_mode
        keys = torch._C._TorchDispatchModeKey
        self._tracers = (keys.FAKE, keys.PROXY, keys.FUNCTIONAL)
        self._functorch = torch._C._functorch

    def traced(self):
        """Return True if a compiler only looks at what would be computed."""
        return bool(self._modes()) and any(self._mode(key) is not None for key in self._tracers)

    def _transforms(self):
        if self._functorch.maybe_current_level() is None:
            return ()
        return [level.key() for level in self._functorch.get_interpreter_stack() or ()]

    def kind(self, args, kwargs):
        """Return its number in `GRADIENT_CALLS`."""
        grads = self._transforms().count(self._functorch.TransformType.Grad)
        follows = kwargs.get("create_graph") or (len(args) > 4 and args[4])
        if grads > 1 or (follows and not grads):
            return _PARTIAL
        return _FUNCTIONAL if grads else _PLAIN

    def loss(self, args, kwargs):
        """Return the outputs where they may be a loss, as for a backward; else ()."""
        weights = args[2] if len(args) > 2 else kwargs.get("grad_outputs")
        transforms = self._transforms()
        if weights is not None or self._functorch.TransformType.Vmap in transforms:
            return ()
        outputs = args[0] if args else kwargs["outputs"]
        if not transforms:
            return outputs
        output = outputs[0] if isinstance(outputs, (tuple, list)) else outputs
        # A wrapper is worth nothing once its transform has ended.
        while self._functorch.is_functorch_wrapped_tensor(output):
            output = self._functorch.get_unwrapped(output)
        return output


class _GradientCalls:
    """The work before and after each call; `counted`: the kind that is a backward pass, if any."""

    def __init__(self, session, passes, counted):
        self._session = session
        self._passes = passes
        self._counted = counted
        self._kinds = _Kinds(session.torch)
        self._observing = not session.plan.get("boundary")
        self._busy = False

    def _before(self, kind):
        """Note the begin of a call that is no backward pass, or of which that is not known yet."""
        session = self._session
        models = self._session.models
        if self._observing and kind != _PARTIAL:
            if session.backward_location is False:
                if not models.settled:
                    models.discover()
                elif not models.seen_forward:
                    models.look_again()
                models.seen_forward = False
                session.first_batch()
            if session.gradient_location is None:
                session.gradient_location = places.here()
        code = session.log.last_code
        session.log.add(step_log.GRADIENT_BEGIN, kind, get_ident())
        return code

    def _after(self, kind, code):
        log = self._session.log
        now = log.add(step_log.GRADIENT_END, kind, -1)
        if kind == _PARTIAL:
            log.last_code = code  # what it is a part of goes on
        if self._observing:
            self._session.learning(now)

    def _passed_on(self):
        """Return True where nothing is noted: within another call, or while a compiler traces.

        A compiler computes no gradient, and a loss that is read would end up in its graph.
        """
        session = self._session
        if not session.on or self._busy or self._kinds.traced():
            return True
        return session.phases and session.log.last_code == step_log.BACKWARD_BEGIN

    def _captured(self, old, args, kwargs):
        """Call it while a graph is captured: it is computed, and noted, at each replay."""
        self._busy = True
        try:
            result = old(*args, **kwargs)
        finally:
            self._busy = False
        try:
            kind, passes = self._kinds.kind(args, kwargs), self._passes
            graphs, loss = self._session.graphs, self._kinds.loss(args, kwargs)
            if kind == self._counted:
                graphs.add(passes.begin_replay, passes.end_replay, first_of(loss))
            elif self._session.phases:
                codes = []
                graphs.add(
                    lambda: codes.append(self._before(kind)),
                    lambda _: self._after(kind, codes.pop()),
                    None,
                )
        except Exception as error:
            self._session.fail("gradient", error)
        return result

    def around(self, old):
        """Return the wrapper of `torch.autograd.grad`."""
        session = self._session
        compiling = session.torch.compiler.is_dynamo_compiling

        def grad(*args, **kwargs):
            # Where dynamo traces through here, the question is a constant.
            if compiling() or self._passed_on():
                return old(*args, **kwargs)
            answer = session.ask("gradients", args, kwargs) if session.arms else None
            if answer is not None:
                return answer[0]
            graphs = session.graphs
            if graphs.notes is not None and graphs.capturing():
                return self._captured(old, args, kwargs)
            graphs.within += 1
            kind, code = self._begins(args, kwargs)
            self._busy = True
            try:
                result = old(*args, **kwargs)
            except BaseException as error:
                session.hide_frames(error)
                self._failed(kind)
                raise
            finally:
                self._busy = False
                graphs.within -= 1
            self._ends(kind, code, args, kwargs)
            return result

        return grad

    def _begins(self, args, kwargs):
        """Note the begin of a call; return its kind, and what it was computed after."""
        kind = _PLAIN
        try:
            kind = self._kinds.kind(args, kwargs)
            if kind == self._counted:
                self._passes.begin(kwargs.get("retain_graph") and kind == _PLAIN)
            elif self._session.phases:
                return kind, self._before(kind)
        except Exception as error:
            self._session.fail("gradient", error)
        return kind, 0

    def _failed(self, kind):
        if kind == self._counted:
            self._passes.failed()
        elif self._session.phases:
            self._session.log.add(step_log.GRADIENT_END, kind, -1)

    def _ends(self, kind, code, args, kwargs):
        try:
            if kind == self._counted:
                self._passes.end(self._kinds.loss(args, kwargs))
            elif self._session.phases:
                self._after(kind, code)
        except Exception as error:
            self._session.fail("gradient", error)


def install(session, passes):
    """Wrap `torch.autograd.grad`, where it means something."""
    by = (session.plan.get("boundary") or {}).get("learned_by")
    kinds = step_log.GRADIENT_CALLS
    counted = kinds.index(by) if by in kinds else None
    # A switching launch may answer them; by then the program has names of its own for the function.
    if counted is not None or session.phases or session.arms:
        calls = _GradientCalls(session, passes, counted)
        wrapping.wrap(session.torch.autograd, "grad", calls.around)
