"""Objects of the training loop that are larger at each look: what makes a step grow.

The looks are those of the main thread's own hooks, so that the frames above it stand still.
"""

import inspect
import itertools
import linecache
import sys
import time
import types
from collections import deque

from .. import places

_HOOKS = (  # of a module, by the methods that register them
    ("register_forward_hook", "_forward_hooks"),
    ("register_forward_pre_hook", "_forward_pre_hooks"),
    ("register_full_backward_hook", "_backward_hooks"),
    ("register_full_backward_pre_hook", "_backward_pre_hooks"),
)
_EVERY_S = 0.25
_MOST_LOOKS = 40
_FEWEST_LOOKS = 4
_MOST_NAMES = 400
_MOST_ROWS = 8
_FRAMES = 3
_OWN_REFERENCES = 3  # the frame's, and two in the question
_DEEP = 2  # attributes of attributes
_FEW_FALLS = 0.25  # of the looks, at which it may begin anew
_COLLECTIONS = (list, dict, set, deque, bytearray)
_NO_OWNERS = (types.ModuleType, type, types.FunctionType, types.MethodType, str, bytes)


class _Sizes:
    def __init__(self, kind, where, size, step):
        self.kind = kind
        self.where = where
        self.first = self.last = size
        self.first_step = self.last_step = step
        self.looks = 1
        self.rises = 0
        self.falls = 0
        self.risen = 0

    def note(self, size, step):
        """Take the size at another look."""
        self.looks += 1
        self.rises += size > self.last
        self.falls += size < self.last
        self.risen += max(size - self.last, 0)
        self.last = size
        self.last_step = step

    @property
    def grows(self):
        """Return True if it was larger at each look, but for a few at which it began anew."""
        falls = self.looks * _FEW_FALLS
        enough = self.looks >= _FEWEST_LOOKS and self.rises + self.falls == self.looks - 1
        return enough and self.falls <= falls


class GrownObjects:
    """Sizes by the file, the function and the name in it; of hooks by the class and the method."""

    def __init__(self, session):
        self._session = session
        self._tensor = session.torch.Tensor
        self._sizes = {}
        self._next_s = 0.0
        self._looks = 0
        session.when_due.append(self.look)

    def look(self):
        """Ask all objects that the user's frames above name for their sizes, if it is time to."""
        now = time.perf_counter()
        session = self._session
        if now < self._next_s or self._looks >= _MOST_LOOKS or not session.learned:
            return
        self._next_s = now + _EVERY_S
        self._looks += 1
        step = session.window.iteration or session.batches or session.learned // 2
        frames = list(places.users_frames(sys._getframe(1)))[:_FRAMES]
        for frame in frames:
            where = places.of_frame(frame)
            key = (where["file"], where["function"])
            self._look_at(frame.f_locals, key, "", where, step)
            _release(frame)
        for model in session.models.alive():
            self._look_at_hooks(model, step)

    def _look_at_hooks(self, model, step):
        """Count the hooks of a model and of the modules in it."""
        modules = list(itertools.islice(model.modules(), _MOST_NAMES))
        for method, name in _HOOKS:
            hooks = [
                hook for module in modules for hook in (getattr(module, name, None) or {}).values()
            ]
            if hooks:
                key = ("", type(model).__name__, method)
                self._note(key, "hooks", _registering_line(hooks[-1], method), len(hooks), step)

    def _look_at(self, named, key, prefix, where, step):
        depth = prefix.count(".")
        for name, value in list(named.items()):
            if not isinstance(name, str) or name.startswith("__"):
                continue
            size = self._size(value)
            if size is not None:
                self._note((*key, prefix + name), type(value).__name__, where, size, step)
            elif depth < _DEEP and not isinstance(value, _NO_OWNERS):
                attributes = getattr(value, "__dict__", None)
                if type(attributes) is dict and not places.is_librarys(type(value).__module__):
                    self._look_at(attributes, key, "%s%s." % (prefix, name), where, step)

    def _size(self, value):
        """Return the elements of a collection, tensor or array; None: it is none."""
        if type(value) in _COLLECTIONS:
            return len(value)
        if type(value) is self._tensor:
            return value.numel()
        if type(value).__module__ == "numpy" and type(value).__name__ == "ndarray":
            return int(value.size)
        return None

    def _note(self, key, kind, where, size, step):
        sizes = self._sizes.get(key)
        if sizes is not None:
            sizes.note(size, step)
        elif len(self._sizes) < _MOST_NAMES:
            self._sizes[key] = _Sizes(kind, where, size, step)

    def facts(self):
        """Return `grown_objects` of the process facts, the fastest first."""
        grown = [(key, sizes) for key, sizes in self._sizes.items() if sizes.grows]
        rows = []
        for (_, owner, name), sizes in grown:
            steps = max(sizes.last_step - sizes.first_step, 1)
            row = {"name": name, "kind": sizes.kind, "location": sizes.where}
            row["model"] = owner if sizes.kind == "hooks" else None
            row.update(first=sizes.first, last=sizes.last, per_step=sizes.risen / steps)
            rows.append(row)
        rows.sort(key=lambda row: -row["per_step"])
        return {"grown_objects": rows[:_MOST_ROWS]}


def _registering_line(hook, method):
    """Return the only line of the hook's file that registers one; None: it is not sure."""
    code = getattr(hook, "__code__", None)
    if code is None or not places.is_users(code.co_filename):
        return None
    lines = linecache.getlines(code.co_filename)
    numbers = [number for number, text in enumerate(lines, 1) if "." + method + "(" in text]
    return places.of_line(code.co_filename, numbers[0], None) if len(numbers) == 1 else None


def _release(frame):
    """Let go of what a look at a function's names keeps alive, up to Python 3.12."""
    of_module = not frame.f_code.co_flags & inspect.CO_OPTIMIZED  # whose names are its own
    if of_module or sys.version_info >= (3, 13):
        return
    kept = frame.f_locals
    # A third one holds it where the program itself has asked for locals().
    if sys.getrefcount(kept) <= _OWN_REFERENCES:
        kept.clear()
