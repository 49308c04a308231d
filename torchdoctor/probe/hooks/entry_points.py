"""Known functions by which programs infer, of libraries that the program imports itself.

The plan lists them (`launch/entry_points.toml`). A step may be one outermost call; what generates
tokens is noted within one as well.
"""

import functools

from .. import step_log, wrapping

_BATCH_OF_IMAGES = 4  # of dimensions
_NUMBERS = 2  # of dimensions, of token numbers


class Nesting:
    """Whether a call is open, and one that generates: in whatever thread."""

    entered = generating = False


class EntryPoints:
    """The calls of known functions, by their numbers in the plan."""

    def __init__(self, session, nesting=None):
        self._session = session
        self._nesting = nesting or Nesting()
        self._entries = session.plan.get("entry_points") or ()
        self._hooked = set()
        self._unfinished = []
        self._observing = session.plan.get("purpose") == "observe"
        session.forget.append(self._forget)
        self._forget()
        session.registries.append(self)

    def _forget(self):
        self._nesting.entered = self._nesting.generating = False
        self.calls = [0] * len(self._entries)

    def install(self, watch):
        """Hook into these functions as soon as the program has imported them."""
        if not self._session.inference.looks:
            return
        for number, entry in enumerate(self._entries):
            for name in entry["modules"]:
                hook = self._session.guarded(functools.partial(self._imported, number))
                watch.when_imported(name, hook)

    def look_again(self):
        """Hook into what was being imported when torch was."""
        unfinished, self._unfinished = self._unfinished, []
        for number, module in unfinished:
            self._imported(number, module)

    def name(self, number):
        """Return what the function of a number is called."""
        return self._entries[number]["name"]

    def facts(self):
        """Return `entry_points` of the process facts."""
        return {
            "entry_points": [
                {"ident": number, "name": self._entries[number]["name"], "calls": calls}
                for number, calls in enumerate(self.calls)
                if calls
            ]
        }

    def _imported(self, number, module):
        cls = getattr(module, self._entries[number]["class"], None)
        if cls is None:
            if getattr(getattr(module, "__spec__", None), "_initializing", False):
                self._unfinished.append((number, module))
            return
        self._hook_all(number, cls)
        self._hook_later(number, cls)

    def _hook_all(self, number, cls):
        """Hook into a class and all that are derived from it so far."""
        name = self._entries[number]["method"]
        if (cls, name) in self._hooked:
            return
        self._hooked.add((cls, name))
        if name in cls.__dict__:
            wrapping.wrap(cls, name, functools.partial(self._around, number))
        for subclass in type.__subclasses__(cls):
            self._hook_all(number, subclass)

    def _hook_later(self, number, cls):
        """Hook into a class that is going to be derived, too: it may have a method of its own."""
        own_method = cls.__dict__.get("__init_subclass__")
        hook = self._session.guarded(functools.partial(self._hook_all, number))

        def __init_subclass__(subclass, **kwargs):
            if own_method is not None:
                own_method.__get__(None, subclass)(**kwargs)
            else:
                super(cls, subclass).__init_subclass__(**kwargs)
            hook(subclass)

        cls.__init_subclass__ = classmethod(__init_subclass__)

    def _around(self, number, old):
        session = self._session
        nesting = self._nesting
        compiling = session.torch.compiler.is_dynamo_compiling
        generates = bool(self._entries[number].get("generates"))
        begins = session.guarded(self._begins)
        ended = session.guarded(self._ended)

        def call(*args, **kwargs):
            if compiling() or not session.on:
                return old(*args, **kwargs)
            outermost = not nesting.entered
            generation = generates and not nesting.generating and self._observing
            if not (outermost or generation):
                return old(*args, **kwargs)
            result = None
            if outermost:
                nesting.entered = True
            if generation:
                nesting.generating = True
            begins(number, outermost, generation, args, kwargs)
            try:
                result = old(*args, **kwargs)
                return result
            except BaseException as error:
                session.hide_frames(error)
                raise
            finally:
                ended(number, outermost, generation, args, kwargs, result)
                if outermost:
                    nesting.entered = False
                if generation:
                    nesting.generating = False

        return call

    def _begins(self, number, outermost, generation, args, kwargs):
        session = self._session
        if outermost:
            self.calls[number] += 1
            if session.inference.wanted:
                session.first_batch()
            session.window.event("entry", number)
            if session.phases:
                how = self._entries[number].get("samples")
                samples = 1 if how == "one" else samples_of(args[1:], kwargs, how == "images")
                session.log.add(step_log.ENTRY_BEGIN, number, samples)
        if generation:
            session.log.add(step_log.GENERATION_BEGIN, number)

    def _ended(self, number, outermost, generation, args, kwargs, result):
        session = self._session
        if generation:
            tokens = _tokens(session.torch, args, kwargs, result)
            session.log.add(step_log.GENERATION_END, number, tokens)
        if outermost:
            if session.phases:
                session.log.add(step_log.ENTRY_END, number)
            session.inference.called()


def samples_of(args, kwargs, images=False):
    """Return how many samples a call gets, by its first argument; UNKNOWN_SIZE: no telling.

    A tensor's rows are samples, but an image's are not; a file's name may be a folder's.
    """
    first = args[0] if args else next(iter(kwargs.values()), None)
    if hasattr(first, "values") and not hasattr(first, "shape"):  # a dict, or a BatchEncoding
        first = next(iter(first.values()), None)
    if isinstance(first, (str, bytes)):
        return step_log.UNKNOWN_SIZE if images else 1
    shape = getattr(first, "shape", None)
    if isinstance(shape, tuple):
        if images and len(shape) < _BATCH_OF_IMAGES:
            return 1
        # An array may be anything.
        has_rows = images or (len(shape) > 1 and hasattr(first, "layout"))
        return int(shape[0]) if has_rows else step_log.UNKNOWN_SIZE
    return len(first) if isinstance(first, (list, tuple)) else step_log.UNKNOWN_SIZE


def _tokens(torch, args, kwargs, result):
    """Return the tokens that `generate` made, padding at the ends of rows left out."""
    ids = getattr(result, "sequences", result)
    if not isinstance(ids, torch.Tensor) or ids.dim() != _NUMBERS or ids.is_floating_point():
        return step_log.UNKNOWN_SIZE
    config = getattr(args[0], "config", None)
    prompt = next(
        (kwargs[name] for name in ("input_ids", "inputs") if kwargs.get(name) is not None), None
    )
    if prompt is None and len(args) > 1:
        prompt = args[1]
    if getattr(config, "is_encoder_decoder", False):
        begun = 1
    elif isinstance(prompt, torch.Tensor) and prompt.dim() == _NUMBERS:
        begun = prompt.shape[1]
    elif kwargs.get("inputs_embeds") is not None:
        begun = 0  # its result holds none of the prompt
    else:
        return step_log.UNKNOWN_SIZE
    made = ids[:, begun:]
    padding = getattr(getattr(args[0], "generation_config", None), "pad_token_id", None)
    if padding is None or not made.numel():
        return int(made.numel())
    real = (made != padding).long()
    from_end = real.flip(1).cumsum(1).flip(1) > 0  # up to the last one that is no padding
    counted = from_end.sum(1)
    ends = getattr(args[0].generation_config, "eos_token_id", None)
    ends = ends if isinstance(ends, list) else [ends]
    if padding in ends:  # the first of them ended the row
        counted = (counted + 1).clamp(max=made.shape[1])
    return int(counted.sum())
