"""Calls that copy, move or wait, each with its line: for a few steps that nothing is timed in.

The wrappers are installed after the profiler window of its own launch, which ends when they have
seen enough: no timing and no trace ever holds them.
"""

import ast
import contextlib
import sys
import weakref
from time import perf_counter_ns

from .. import places, step_log
from ..measure.nested import is_array
from ..wrapping import NotedCalls

_MOST_ROWS = 100
_INDEXING = ("__getitem__", "__setitem__")
_MADE_ALIKE = ("tensor", "zeros", "ones", "full", "arange", "eye", "linspace", "empty")
_MADE_RANDOM = ("rand", "randn", "randint", "randperm")
_WAITING = ("item", "tolist", "cpu", "numpy", "nonzero", "__bool__", "__float__", "__int__")
_SHOWING = ("__repr__", "__format__")
_DEVICE_WIDE = ("synchronize", "empty_cache")
_READING = ("item", "tolist", "__bool__", "__float__", "__int__")
_COPIES = ("array-copy", "arrays-copy")
_INTERRUPTED = 4  # times the median call of as many bytes: somebody else had the CPU
_SMALL_PIECE = 1024  # elements; a loop over larger ones has something to compute
_LONGEST_BODY_NS = 1_000_000  # of a loop: beyond, indexing is not what costs
_FEWEST_ELEMENTS = 8  # calls per step


class TensorNotes:
    """Notes about tensors by identity (weak keys would compare them), forgotten with the tensor."""

    def __init__(self):
        self._notes = {}  # id -> (weak reference, note)

    def put(self, tensor, note):
        """Remember a note."""
        ident = id(tensor)
        self._notes[ident] = (weakref.ref(tensor, lambda _: self._notes.pop(ident, None)), note)

    def get(self, tensor):
        """Return the tensor's note, or None."""
        reference, note = self._notes.get(id(tensor), (None, None))
        # An id is used again when its owner has gone.
        return note if reference is not None and reference() is tensor else None


class TensorCalls:
    """Rows by (kind, name, line): how often, how many bytes, how long."""

    def __init__(self, session):
        self._session = session
        self._torch = session.torch
        self._rows = {}
        self._made = TensorNotes()  # a tensor made here -> (name, its line)
        self._moved = {}  # (file, line) -> weak reference to the last tensor, and its version
        self._last = {}  # key of a row -> (step, when its last call had been noted)
        self._noted = NotedCalls(session, "tensor_calls")
        self._leave_mode = None
        self._notes = 0  # of elements, so far
        self._note_ns = self._call_ns = 0.0  # of one of them: what noting adds, and without it
        self.steps = 0

    def start(self):
        """Wrap the functions, and note their calls from now on."""
        torch = self._torch
        accelerator = self._session.accelerator
        for owner, names, note in (
            (torch, (*_MADE_ALIKE, *_MADE_RANDOM), self._note_made),
            (torch.Tensor, ("to", accelerator.type), self._note_move),
            (torch.Tensor, (*_WAITING, *_SHOWING), self._note_wait),
            (torch, ("nonzero",), self._note_wait),
            (accelerator.module, _DEVICE_WIDE, self._note_wait),
        ):
            for name in names:
                self._noted.add(owner, name, note)
        self._leave_mode = _enter_index_mode(torch, self._note_index)
        self._noted.on = True

    def stop(self):
        """Note nothing more; what was wrapped stays so."""
        if not self._noted.on:
            return
        rows = dict(self._rows)
        notes = self._notes
        file = next((key[2] for key in rows if key[0] == "element"), None)
        last_line = max((line for _, _, of, line in rows if of == file), default=0)
        noted = self._turns_ns(file, last_line) if file else 0.0
        self._rows = rows
        self._notes = notes
        self._noted.on = False
        if self._leave_mode is not None:
            self._leave_mode()
        if file:
            self._call_ns = self._turns_ns(file, last_line)
            self._note_ns = max(0.0, noted - self._call_ns)

    @contextlib.contextmanager
    def quietly(self):
        """Note nothing of what the analysis itself calls."""
        self._noted.inside = True
        try:
            yield
        finally:
            self._noted.inside = False

    def _turns_ns(self, file, last_line):
        """Return ns of a call in a loop over elements, with what noting adds where that is on.

        The loop's lines are those behind `last_line`, which nothing was noted at. They are no
        farther off: Python 3.10 takes a step for every 127 lines to tell the line of a frame.
        """
        turns = ast.parse("for _ in range(200):\n    x[0].item()")
        code = compile(ast.increment_lineno(turns, last_line), file, "exec")
        values = {"x": self._torch.zeros(8)}
        exec(code, values)
        began = perf_counter_ns()
        exec(code, values)
        return (perf_counter_ns() - began) / 400

    def _note_made(self, call):
        result = call.result
        caller = call.caller
        array = call.args[0] if call.args else None
        if result is None or not places.is_users(caller.f_code.co_filename):
            return
        where = places.of_frame(caller)
        if result.device.type == "cpu" and not result.requires_grad:
            self._made.put(result, (call.name, where))
        if call.name == "tensor" and is_array(array):
            # Nobody else can write to an array that only this call held.
            kind = "array-copy"
            held_alone = call.lone and array.base is None
        elif (
            call.name == "tensor"
            and type(array) in (list, tuple)
            and array
            and all(map(is_array, array))
        ):
            kind = "arrays-copy"
            held_alone = True
        else:
            return
        self._add(kind, call.name, where, _bytes(result), call.took_ns, held_alone)

    def _note_move(self, call):
        (source, *_), result, took = call.args, call.result, call.took_ns
        users = places.users_frame(call.caller)
        if users is None or result is None:
            return
        if source.device.type != "cpu" or result.device.type == "cpu":
            return
        here = places.of_frame(users)
        made = self._made.get(source)
        if made is not None:
            self._add("made-then-moved", *made, _bytes(source), took, made[0] in _MADE_ALIKE)
            return
        key = (here["file"], here["line"])
        last = self._moved.get(key)
        again = last is not None and last[0]() is source and last[1] == source._version
        if again or not source.is_pinned():
            kind = "moved-again" if again else "pageable"
            self._add(kind, call.name, here, _bytes(source), took, users is call.caller)
        self._moved[key] = weakref.ref(source), source._version

    def _note_wait(self, call):
        name = call.name
        caller = call.caller
        took = call.took_ns
        size = 0
        if name not in _DEVICE_WIDE:
            tensor = call.args[0] if call.args else None
            if not isinstance(tensor, self._torch.Tensor):
                return
            if tensor.device.type == "cpu":
                # A value of its own, such as a loss, is no element: only a part of a larger tensor.
                if name in _READING and _is_part(tensor):
                    self._note_element(name, caller, tensor, took)
                return
            size = _bytes(tensor)
        users = places.users_frame(caller)
        if users is not None:
            self._add("wait", name, places.of_frame(users), size, took, users is caller)

    def _note_index(self, name, caller, args, result, took):
        if not self._noted.on or self._noted.inside or not _places(args[1]):
            return
        try:
            if name == "__getitem__" or args[0].dim() == _places(args[1]):
                self._note_element(name, caller, result, took)
        except Exception as error:
            self._session.fail("tensor_calls", error)

    def _note_element(self, name, caller, piece, took):
        """Note one turn of a loop: the call, and what the loop did since its line's last one."""
        began = perf_counter_ns() - took
        if piece is not None and piece.numel() > _SMALL_PIECE:
            return
        # Nor a data set that is asked for one sample after the other.
        fetching = self._session.log.last_code == step_log.FETCH_BEGIN
        if fetching or not places.is_users(caller.f_code.co_filename):
            return
        where = places.of_frame(caller)
        key = (name, where["file"], where["line"])
        step, ended, notes = self._last.get(key, (-1, 0, 0))
        self._notes += 1
        body = began - ended
        between = self._notes - notes
        if step != self.steps or body > _LONGEST_BODY_NS:
            body = 0
            between = 1
        self._add("element", name, where, 0, took + body, True, between)
        self._last[key] = self.steps, perf_counter_ns(), self._notes

    def _add(self, kind, name, where, size, took, sure, notes=0):
        key = (kind, name, where["file"], where["line"])
        row = self._rows.get(key)
        if row is None:
            if len(self._rows) >= _MOST_ROWS:
                return
            row = self._rows[key] = {"location": where, "text": places.text_at(where)}
            row.update(sure=True, calls=0, bytes=0, took_ns=0, notes=0, of_size={})
        row["calls"] += 1
        row["bytes"] += size
        row["took_ns"] += took
        if kind in _COPIES:
            row["of_size"].setdefault(size, []).append(took)
        row["notes"] += notes
        row["sure"] = row["sure"] and sure

    def facts(self):
        """Return `tensor_calls` of the process facts, per step."""
        steps = max(self.steps, 1)
        rows = []
        for (kind, name, _, _), row in self._rows.items():
            if kind != "element" or row["calls"] >= _FEWEST_ELEMENTS * steps:
                each = {figure + "_per_step": row[figure] / steps for figure in ("calls", "bytes")}
                each["host_s"] = self._took_ns(row) / 1e9 / steps
                source = {field: row[field] for field in ("location", "text", "sure")}
                rows.append({"kind": kind, "name": name, **source, **each})
        return {"tensor_calls": rows, "analysed_steps": self.steps}

    def _took_ns(self, row):
        """Return it without what noting has added, nor the time for which others had the CPU.

        Two interrupted calls once made a copy of some microseconds longer than its whole step.
        """
        if row["of_size"]:
            times = [sorted(took) for took in row["of_size"].values()]
            return sum(min(ns, _INTERRUPTED * t[len(t) // 2]) for t in times for ns in t)
        if not row["notes"]:
            return row["took_ns"]
        return max(row["took_ns"] - row["notes"] * self._note_ns, row["calls"] * self._call_ns)


def _bytes(tensor):
    return tensor.numel() * tensor.element_size()


def _is_part(tensor):
    dense = str(tensor.layout) == "torch.strided"  # others have no storage
    return dense and tensor.untyped_storage().nbytes() > _bytes(tensor)


def _places(index):
    """Return how many whole numbers an index is made of; 0: it names no single place."""
    numbers = index if type(index) is tuple else (index,)
    return len(numbers) if all(type(number) is int for number in numbers) else 0


def _enter_index_mode(torch, note):
    """Call `note(name, caller, args, result, took_ns)` after each index; return what ends that.

    A `__getitem__` set on the class would make every tensor a sequence to C: `torch.tensor([loss])`
    would fail. None where the program has a mode of its own open, or has compiled something.
    """
    modes = torch.overrides._get_current_function_mode_stack
    if _has_compiled() or modes():
        return None
    watched = {getattr(torch.Tensor, name): name for name in _INDEXING}

    class IndexMode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            name = watched.get(func)
            if name is None:
                return func(*args, **(kwargs or {}))
            caller = sys._getframe(1)
            began = perf_counter_ns()
            result = func(*args, **(kwargs or {}))
            note(name, caller, args, result, perf_counter_ns() - began)
            return result

    mode = IndexMode()
    mode.__enter__()

    def leave():
        if modes() and modes()[-1] is mode:
            mode.__exit__(None, None, None)

    return leave


def _has_compiled():
    dynamo = sys.modules.get("torch._dynamo.utils")
    try:
        return dynamo is not None and bool(dynamo.counters["frames"])
    except Exception:
        return True
