"""Gradients that are computed without a backward: `torch.autograd.grad`, also by torch.func.

`torch.func.grad`, `vjp` and `jacrev` call it too. Where a program makes no backward pass, the calls
of one kind are its backward passes; which ones, only the whole sequence of events tells. So a
launch that observes logs each call with its kind, and the plan of later ones names what counts.
"""

import functools

from .. import places, step_log

_PLAIN, _FUNCTIONAL, _PARTIAL = range(len(step_log.GRADIENT_CALLS))


class _Calls:
    """What a call of `torch.autograd.grad` is, by its arguments and the transforms around it."""

    def __init__(self, torch):
        self._modes = torch._C._len_torch_dispatch_stack
        self._mode = torch._C._get_dispatch_mode
        keys = torch._C._TorchDispatchModeKey
        self._tracers = (keys.FAKE, keys.PROXY, keys.FUNCTIONAL)
        self._functorch = torch._C._functorch
        self._level = self._functorch.maybe_current_level

    def traced(self):
        """Whether a compiler looks at what would be computed."""
        return bool(self._modes()) and any(self._mode(key) is not None for key in self._tracers)

    def _transforms(self):
        if self._level() is None:
            return ()
        return [one.key() for one in self._functorch.get_interpreter_stack() or ()]

    def kind(self, args, kwargs):
        """Number in `GRADIENT_CALLS`."""
        grads = self._transforms().count(self._functorch.TransformType.Grad)
        if grads:
            return _FUNCTIONAL if grads == 1 else _PARTIAL
        follows = kwargs.get("create_graph") or (len(args) > 4 and args[4])
        return _PARTIAL if follows else _PLAIN

    def loss(self, args, kwargs):
        """The outputs where they may be a loss, as for a backward; else ()."""
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


def install(session, begin, end):
    """Wrap `torch.autograd.grad`, where it means something.

    Args:
        session: the process's session.
        begin: begin(retain_graph), as before a backward pass.
        end: end(tensors), as after it; () where there is no loss.
    """
    boundary = session.plan.get("boundary") or {}
    kinds, by = step_log.GRADIENT_CALLS, boundary.get("learned_by")
    counted = kinds.index(by) if by in kinds else None
    # A switching launch may answer them; by then the program has names of its own for the function.
    if counted is None and not session.phases and not session.arms:
        return
    torch = session.torch
    old = torch.autograd.grad
    calls = _Calls(torch)
    compiling = torch.compiler.is_dynamo_compiling
    log, models, phases = session.log, session.models, session.phases
    observing = not boundary
    busy = [False]
    session.forget.append(lambda: busy.__setitem__(0, False))

    def before(kind):
        """A call that is no backward pass, or of which that is not known yet."""
        if observing and kind != _PARTIAL and session.backward_location is False:
            if not models.settled:
                models.discover()
            elif not models.seen_forward:
                models.look_again()
            models.seen_forward = False
            session.first_batch()
        if observing and kind != _PARTIAL and session.gradient_location is None:
            session.gradient_location = places.here()
        code = log.last_code
        log.add(step_log.GRADIENT_BEGIN, kind)
        return code

    def after(kind, code):
        now = log.add(step_log.GRADIENT_END, kind, -1)
        if kind == _PARTIAL:
            log.last_code = code  # what it is a part of goes on
        if observing:
            session.learning(now)

    def passed_on():
        """Within another its time is counted already, and a backward pass has one boundary only.

        A compiler that traces computes no gradient, and a loss that is read would end up in it.
        """
        if compiling() or not session.on or busy[0] or calls.traced():
            return True
        return phases and log.last_code == step_log.BACKWARD_BEGIN

    def answered(args, kwargs):
        for program in session.programs:
            for function in program.gradient_answers:
                found = program.guarded(function, args, kwargs)
                if found is not None:
                    return found
        return None

    @functools.wraps(old)
    def grad(*args, **kwargs):
        if passed_on():
            return old(*args, **kwargs)
        found = answered(args, kwargs) if session.arms else None
        if found is not None:
            return found[0]
        counts, kind, code = False, _PLAIN, 0
        try:
            kind = calls.kind(args, kwargs)
            counts = kind == counted
            if counts:
                begin(kwargs.get("retain_graph") and kind == _PLAIN)
            elif phases:
                code = before(kind)
        except Exception as error:
            session.fail("gradient", error)
        busy[0] = True
        try:
            result = old(*args, **kwargs)
        except BaseException as error:
            session.hide_frames(error)
            if counts:
                log.add(step_log.BACKWARD_END, 0, -1)
            elif phases:
                log.add(step_log.GRADIENT_END, kind, -1)
            raise
        finally:
            busy[0] = False
        try:
            if counts:
                end(calls.loss(args, kwargs))
            elif phases:
                after(kind, code)
        except Exception as error:
            session.fail("gradient", error)
        return result

    torch.autograd.grad = grad
