"""Root modules: found by a scan, their outermost calls timed.

The root's class gets a `__call__` that forwards: dynamo looks at global hooks and at `nn.Module`'s
own, and what is set on an instance would be pickled or copied with the model.
"""

import contextlib
import gc
import sys
import weakref
from _thread import get_ident

from .. import dynamo_frames, places, step_log, wrapping
from ..measure.inferred_inputs import InferredInputs, mode_dependent
from ..measure.model_facts import describe
from ..measure.nested import shape_rows, shapes

_SCANS = 4
_LATER_SCANS = 16
_VAIN_SCANS = 2
_MOST_SHAPES = 8
_MOST_EVAL_SIZES = 3
_NOTED_CALLS = 32  # of a model that infers: those that warm it up may stand above the loop's own
_TRACED = "_actual_script_module"  # torch.jit.trace gives a module around it, without `_modules`


class Models:
    """The process's root modules and the contexts that fixes opened around their forward."""

    def __init__(self, session):
        self._session, self._calls = session, _Calls(session, self)
        self._numbers = {}  # id(module) -> number in `known`
        self.known = []  # _Root
        self._wrapped = set()
        self._scans = self._later_scans = self._vain_scans = 0
        self._looked_early = not session.phases
        self.nesting = Nesting()
        self._called = 0
        self.open_contexts = []
        self.seen_forward = False  # once settled: since the last backward
        self.settled = False  # no further scan, but for models that come later
        self.first_call = None  # what stands for `nn.Module.__call__` until a forward
        self._awaits_again = False
        self.may_infer = True  # no optimizer was made

    def discover(self):
        """Scan for root modules during the first batches; again until a forward was seen."""
        session = self._session
        unwanted = not session.phases and not session.programs and not session.inference.wanted
        if unwanted or self._scans >= _SCANS or (self._scans and self.seen_forward):
            self.settled = True
            return
        self._scans += 1
        self._scan()

    def look_early(self):
        """Scan where the first optimizer is made, so that what comes before the training is seen.

        Models may still be wrapped then: the scans of `discover` are made all the same.
        """
        self.expect_training()
        if not self._looked_early:
            self._looked_early = True
            self._scan()

    def look_again(self):
        """Scan at a backward without a forward, for a later phase's model; not if that is vain."""
        if self._later_scans >= _LATER_SCANS or self._vain_scans >= _VAIN_SCANS:
            return
        self._later_scans += 1
        count_before = len(self.known)
        self._scan()
        self._vain_scans += len(self.known) == count_before

    def scan(self):
        """Scan for root modules now."""
        self._scan()

    def take(self, module):
        """Take for roots a module that is called by itself, and all parts beside it.

        They belong to a model that is never called as a whole, but by methods of its own.
        """
        add = self._session.guarded(self._add)
        with self._unwrapped():
            for part in self._parts_beside(module):
                add(part)

    def _parts_beside(self, module):
        for root in self.known:
            whole = None if root.forwards else root.module()
            beside = None if whole is None else _parts_with(whole, module)
            if beside is not None:
                return beside
        return [module]

    def call_flags(self, module):
        """Return the value of the events of a call that begins now."""
        return self._calls.flags_of(module)

    def forward_begins(self, root):
        """Note a forward of a root module; the first one of all: what was called before, too."""
        self.seen_forward = True
        if self.first_call is not None:
            self._calls.note_earlier(root, self.first_call.calls_of(root.module()))
            if self._awaits_again:
                self._scan()
            self.stop_awaiting()

    def await_again(self, first_call):
        """Look for models that are made after the first call."""
        self.first_call = first_call
        self._awaits_again = True
        self.seen_forward = False

    def expect_training(self):
        """Look for no further first call: a program that makes an optimizer trains."""
        self.may_infer = False
        self.stop_awaiting()

    def stop_awaiting(self):
        """Look no more for the first call of any module: what is compiled guards on its class."""
        if self.first_call is not None:
            self.first_call.end()
            self.first_call = None

    def wraps(self, cls):
        """Return whether calls of a class are noted."""
        return cls in self._wrapped

    @dynamo_frames.quietly
    def _scan(self):
        with self._unwrapped():
            self._scan_all()

    def _unwrapped(self):
        """Return a context in which classes are as the program made them."""
        return self.first_call or contextlib.nullcontext()

    def _scan_all(self):
        module_class = self._session.torch.nn.Module
        # Never isinstance(): it would wake up the lazy proxies of other libraries.
        modules = [
            tracked for tracked in gc.get_objects() if _is_module(type(tracked), module_class)
        ]
        children = set()
        for module in modules:
            attributes = module.__dict__
            children.update(map(id, (attributes.get("_modules") or {}).values()))
            children.add(id(attributes.get(_TRACED)))
        roots = [m for m in modules if id(m) not in children]
        if self._scans > 1:
            # The root is never called as a whole (a LightningModule): look one level deeper.
            uncalled = [root.module() for root in self.known if not root.forwards]
            roots += [c for module in uncalled if module is not None for c in module.children()]
        add = self._session.guarded(self._add)  # one that cannot be read costs no other
        for module in roots:
            add(module)

    def _add(self, module):
        attributes = module.__dict__
        # A module that is gone has left its id to others.
        if self.root_of(module) is not None or (
            attributes.get("_modules") is None and _TRACED not in attributes
        ):
            return
        if next(iter(module.parameters()), None) is None:
            return
        root = _Root(module, not self._scans)
        cls = type(module)
        self._numbers[id(module)] = len(self.known)
        self.known.append(root)
        if cls not in self._wrapped:
            self._wrapped.add(cls)
            wrapping.wrap(cls, "__call__", self._calls.around)
        self._session.tell("model", module)

    def number(self, root):
        """Return a root's ident: in the order of first calls, which is the same in each launch."""
        if root.ident is None:
            root.ident, self._called = self._called, self._called + 1
        return root.ident

    def made_anew(self, module):
        """Return the root that an unknown module of a known class is made in place of, or None."""
        cls = type(module)
        for root in self.known:
            if root.ident is not None and root.cls is cls and root.module() is None:
                root.module = weakref.ref(module)
                self._numbers[id(module)] = self.known.index(root)
                root.made_anew += 1
                return root
        return None

    def overlaps(self, module):
        """Note that a call is not followed, as one of another thread is."""
        root = self.root_of(module)
        if root is not None:
            root.overlapping_forwards += 1

    def alive(self):
        """Return the root modules that still exist."""
        return [module for root in self.known if (module := root.module()) is not None]

    def root_of(self, module):
        """Return the `_Root` of this very module, or None."""
        number = self._numbers.get(id(module))
        root = None if number is None else self.known[number]
        return None if root is None or root.module() is not module else root

    def enter(self, module):
        """Open the contexts that fixes want around this forward; those that end with it."""
        of_forward = []
        for until, contexts in (("forward", of_forward), ("backward", self.open_contexts)):
            for program in self._session.programs:
                for make_context in program.functions.get("contexts until " + until, ()):
                    context = program.guarded(_entered, make_context, module)
                    if context is not None:
                        contexts.append((program, context))
        return of_forward

    def leave_contexts(self):
        """Close the contexts that outlast the forward."""
        while self.open_contexts:
            program, context = self.open_contexts.pop()
            program.guarded(context.__exit__, None, None, None)

    def facts(self):
        """Return `models` of the process facts."""
        roots = [root for root in self.known if root.ident is not None or not root.is_early]
        for root in roots:
            self.number(root)
        infers = self._session.inference.looks
        return {"models": [root.facts(infers) for root in roots]}


class Nesting:
    """How many calls of root modules are open, in whatever thread: steps are of one at a time."""

    calls = 0
    thread = None  # of the outermost one, where that is of interest

    def noted(self, models, module):
        """Return True; note a call that began while one of another thread was open."""
        if self.thread not in (None, get_ident()):
            models.overlaps(module)
        return True


class _Root:
    def __init__(self, module, is_early):
        self.ident, self.is_early = None, is_early  # in the order of first calls
        self.module, self.cls, self.made_anew = weakref.ref(module), type(module), 0
        self.described = describe(module)
        self.input_shapes, self.eval_shapes = [], set()
        self.forwards = self.eval_forwards = self.eval_with_grad = self.autocast = 0
        self.overlapping_forwards = 0
        self.eval_location = None
        self.bindings = self.inferred_bindings = None  # of a call that trains, of any
        self.with_grad = 0
        self.inferred_shapes = []
        self.inputs = InferredInputs(sys.modules["torch"])

    def facts(self, infers):
        if (module := self.module()) is not None:
            with contextlib.suppress(Exception):  # one that cannot be read now was told before
                self.described = describe(module)
        return {
            **self.described,
            "ident": self.ident,
            **{name: getattr(self, name) for name in ("forwards", "eval_forwards", "made_anew")},
            **(self._inferred() if infers else self._trained()),
            "overlapping_forwards": self.overlapping_forwards,
            "eval_forwards_with_grad": self.eval_with_grad,
            "eval_sizes": len(self.eval_shapes),
            "eval_with_grad_location": self.eval_location,
            "autocast_forwards": self.autocast,
            **dict(zip(("call", "holder", "holder_depth"), self.bindings or ())),  # noqa: B905
        }

    def _trained(self):
        """Return facts of the inputs of a model that is trained."""
        padding = self.inputs.facts()
        padding.pop("grown_calls", None)
        return {"input_tensors": shape_rows(self.input_shapes), **padding}

    def _inferred(self):
        """Return facts of a model of a program that may infer."""
        module = self.module()
        facts = {"input_tensors": shape_rows(self.inferred_shapes)}
        if module is not None:
            torch = sys.modules["torch"]
            facts["mode_dependent"] = mode_dependent(module.modules(), torch)
        self.bindings = self.bindings or self.inferred_bindings
        return {**facts, **self.inputs.facts(), "forwards_with_grad": self.with_grad}


def _parts_with(whole, module):
    """Return the parts of a module, or of one of its parts, that `module` is one of, or None."""
    parts = list(_parts(whole))
    if any(part is module for part in parts):
        return parts
    deeper = (_parts_with(part, module) for part in parts)
    return next((beside for beside in deeper if beside is not None), None)


def _parts(whole):
    """Yield the children of a module that can be called; a list of modules cannot."""
    for child in whole.children():
        if type(child).forward is sys.modules["torch"].nn.Module.forward:
            yield from _parts(child)
        else:
            yield child


def _entered(make_context, module):
    context = make_context(module)
    if context is not None:
        context.__enter__()
    return context


def _is_module(cls, module_class):
    try:
        return issubclass(cls, module_class)
    except TypeError:
        return False


class _Calls:
    """The work before and after the outermost call of a root module."""

    def __init__(self, session, models):
        self._session = session
        self._models = models
        # Looking into a frame keeps what its names held then alive, up to Python 3.12.
        self._observing = session.plan.get("purpose") == "observe"
        self._grad_enabled = session.torch.is_grad_enabled
        self._autocast_enabled = _autocast(session.torch)
        self._look = session.guarded(self._look)

    def _look_closely(self, root, module, args, kwargs):
        """Note what matters where the program infers: nothing was learned so far."""
        if self._observing and root.inferred_bindings is None:
            root.inferred_bindings = ()
            root.inferred_bindings = places.names_of(module)
        if self._observing and root.forwards <= _NOTED_CALLS:
            self._note_line(places.users_frame(sys._getframe(1)))
        kind = shapes([args, kwargs])
        if kind not in root.inferred_shapes and len(root.inferred_shapes) < _MOST_SHAPES:
            root.inferred_shapes.append(kind)
        if self._observing:
            root.inputs.look(module, args, kwargs)

    def _look(self, root, module, args, kwargs, grad):
        """Note what is noted of the first forwards, and of those in evaluation mode."""
        if self._session.inference.looks:
            self._look_closely(root, module, args, kwargs)
        elif self._observing and module.training and grad:
            root.inputs.look(module, args, kwargs, trains=True)
        if not module.training:
            root.eval_forwards += 1
            root.eval_with_grad += grad
            if root.eval_forwards <= 64 and len(root.eval_shapes) < _MOST_EVAL_SIZES:
                root.eval_shapes.add(shapes([args, kwargs]))
            if grad and root.eval_location is None:
                root.eval_location = places.here()
        elif grad and self._observing:
            if root.bindings is None:
                root.bindings = ()  # looked for once, whatever comes of it
                root.bindings = places.names_of(module)
                self._note_line(places.users_frame(sys._getframe(1)))
            self._session.passes.forward(root, module)
        if grad and root.forwards <= 64 and len(root.input_shapes) < _MOST_SHAPES:
            kind = shapes([args, kwargs])
            if kind not in root.input_shapes:
                root.input_shapes.append(kind)

    def _note_line(self, frame):
        """Note the last line of each function that calls a model: the step's batch is there."""
        if frame is not None:
            lines = self._session.forward_lines
            code = frame.f_code
            lines[code] = max(frame.f_lineno, lines.get(code, 0))

    def flags_of(self, module):
        """Return bits: 1 gradients are enabled, 2 the module is in training mode, 4 autocast."""
        return self._grad_enabled() | module.training << 1 | self._autocast_enabled() << 2

    def note_earlier(self, root, calls):
        """Log calls that have ended, and count them."""
        log = self._session.log
        for began_ns, ended_ns, flags in calls if self._session.phases else ():
            root.forwards += 1
            root.with_grad += flags & 1
            root.autocast += flags >> 2
            if not flags & 2:
                root.eval_forwards += 1
                root.eval_with_grad += flags & 1
            log.add_at(step_log.FORWARD_BEGIN, root.ident, began_ns, flags)
            log.add_at(step_log.FORWARD_END, root.ident, ended_ns, flags)

    def _begin(self, root, module, args, kwargs):
        session = self._session
        self._models.nesting.thread = get_ident()
        flags = self.flags_of(module)
        grad = bool(flags & 1)
        training = bool(flags & 2)
        root.autocast += flags >> 2
        root.forwards += 1
        root.with_grad += grad
        if root.forwards <= 128 or not training or session.passes.on:
            self._look(root, module, args, kwargs, grad)
        session.log.add(step_log.FORWARD_BEGIN, root.ident, flags)
        return flags

    def _changed(self, module, args, kwargs):
        """Return the arguments as fixes change them, and the contexts that end with the call."""
        for program in self._session.programs:
            for function in program.functions.get("arguments", ()):
                args, kwargs = program.guarded(function, module, args, kwargs) or (args, kwargs)
        return args, kwargs, self._models.enter(module)

    def _begins(self, root, module, args, kwargs):
        """Note the begin of a root's call, and ask the fixes.

        Returns the arguments to call it with, the contexts that end with the call, its flags, and
        the answer of a fix that stands for the call, as a tuple of one (None: call it).
        """
        session = self._session
        models = self._models
        contexts = ()
        flags = 0
        answer = None
        try:
            if root.ident is None:
                models.number(root)
            if not models.seen_forward:
                models.forward_begins(root)
            if session.inference.looks:
                session.inference.begins(root.ident)
            if session.phases:
                flags = self._begin(root, module, args, kwargs)
            if session.programs:
                answer = session.ask("forward", module, args, kwargs)
                if answer is None:
                    args, kwargs, contexts = self._changed(module, args, kwargs)
        except Exception as error:
            session.fail("forward", error)
        return args, kwargs, contexts, flags, answer

    def around(self, old):
        """Return the wrapper of a root class's `__call__`."""
        session = self._session
        models = self._models
        nesting = self._models.nesting
        phases = session.phases
        compiling = session.torch.compiler.is_dynamo_compiling
        root_of = models.root_of
        add = session.log.add
        inference = session.inference
        infers = session.guarded(inference.ended) if inference.looks else None

        def __call__(module, /, *args, **kwargs):
            # Where dynamo traces through here (a child of a root's class, inside a compiled
            # module), the question is a constant: nothing of ours stays in the graph or breaks it.
            if compiling() or (nesting.calls and nesting.noted(models, module)) or not session.on:
                return old(module, *args, **kwargs)
            root = root_of(module)
            if root is None and inference.looks:
                root = models.made_anew(module)
            if root is None:
                return old(module, *args, **kwargs)
            args, kwargs, contexts, flags, answer = self._begins(root, module, args, kwargs)
            nesting.calls += 1
            try:
                if answer is not None:
                    if inference.looks:
                        infers(answer[0])
                    return answer[0]
                output = old(module, *args, **kwargs)
                if session.programs:
                    session.tell("forward ended", module, args, kwargs, output)
                if inference.looks:
                    infers(output)
                return output
            except BaseException as error:
                session.hide_frames(error)
                raise
            finally:
                nesting.calls -= 1
                for program, context in reversed(contexts):
                    program.guarded(context.__exit__, None, None, None)
                if phases:
                    add(step_log.FORWARD_END, root.ident, flags)

        return __call__


def _autocast(torch):
    for_any = getattr(torch._C, "_is_any_autocast_enabled", None)
    return for_any or (lambda: torch.is_autocast_enabled() or torch.is_autocast_enabled("cpu"))
