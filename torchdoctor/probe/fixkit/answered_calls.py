"""Calls of a tensor's methods answered with what the same call returned an iteration before.

A call is told by its place (the three innermost frames) and its number there in the iteration, so
whatever the program decides by it, it decides as in the iteration that the answer comes from.
"""

import functools
import sys
import threading

from .. import dynamo_frames, places

_FRAMES = 3
_MOST_KEPT = 100_000  # values; a place that is called more often is called for real
_MOST_BYTES = 1 << 30  # of tensors that are kept
_LEAST_ANSWERED = 0.8  # of the calls; with less their cost would look hidden
_ENOUGH = 10  # iterations to tell by
_ABSENT = object()


class AnsweredCalls:
    """Wrappers that are there only while they are on; `program` is the ceiling's `Program`."""

    def __init__(self, program):
        self._program = program
        self._wanted = []  # (owner, name, describe)
        self._before = []  # (owner, name, what its own dictionary held)
        self._main = threading.main_thread().ident
        self._answered = self._made = self._iterations = 0  # of all blocks
        self._forget()

    def _forget(self):
        self._kept = {}  # place and number -> (value, version)
        self._counts = {}
        self._bytes = 0
        self._first = True  # iteration: there is nothing to answer with yet

    def of(self, owner, name, describe):
        """Answer calls of owner.name with one of an equal describe(args, kwargs); None: never."""
        self._wanted.append((owner, name, describe))

    def moved_to(self, args, kwargs):
        """Return the device and the dtype that `Tensor.to` is asked for; (None, None): neither."""
        wanted = {name: value for name, value in kwargs.items() if name != "copy"}
        try:
            return self._program.torch._C._nn._parse_to(*args[1:], **wanted)[:2]
        except (TypeError, RuntimeError):
            return None, None  # no call of this kind, or the user's own mistake

    def start(self):
        """Answer calls from here on; the first call at each place is made as ever."""
        if self._before:
            return
        self._forget()
        for owner, name, describe in self._wanted:
            if (old := getattr(owner, name, None)) is not None:
                self._before.append((owner, name, vars(owner).get(name, _ABSENT)))
                setattr(owner, name, self._wrapper(old, name, describe))

    def stop(self):
        """Put back what was there before."""
        while self._before:
            owner, name, value = self._before.pop()
            if value is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
        self._forget()

    def next_iteration(self):
        """Count the calls anew; soon refuse where too few of them are answered."""
        self._counts.clear()
        self._iterations += not self._first
        self._first = False
        calls = self._answered + self._made
        few = self._answered < _LEAST_ANSWERED * calls
        if few and self._iterations >= _ENOUGH and self._program.usable:
            self._program.refuse("few-calls-repeat", of_calls=self._answered / calls)

    def _wrapper(self, old, name, describe):
        guarded = self._program.guarded
        program = self._program

        @functools.wraps(old)
        def function(*args, **kwargs):
            if not program.usable or threading.get_ident() != self._main:
                return old(*args, **kwargs)
            key = guarded(self._key, name, describe, args, kwargs)
            if key is None:
                return old(*args, **kwargs)
            answer = guarded(self._look, key)
            if answer is not None:
                return answer[0]
            value = old(*args, **kwargs)
            guarded(self._keep, key, value)
            return value

        return dynamo_frames.pass_through(function)

    def _key(self, name, describe, args, kwargs):
        frame = sys._getframe(3)  # above this, `guarded` and the wrapper
        if places.is_probes(frame.f_code.co_filename):
            return None  # the probe itself wants the value
        described = describe(args, kwargs)
        if described is None:
            return None
        place = []
        while frame is not None and len(place) < _FRAMES:
            place.append((id(frame.f_code), frame.f_lasti))
            frame = frame.f_back
        where = (name, described, *place)
        number = self._counts[where] = self._counts.get(where, -1) + 1
        return (number, where)

    def _look(self, key):
        kept = self._kept.get(key)
        if kept is None:
            return None
        value, version = kept
        if getattr(value, "_version", None) != version:
            self._program.refuse("result-changed-in-place")
        self._answered += not self._first
        if self._program.state == "pending":
            self._program.applied()
        return (value,)

    def _keep(self, key, value):
        self._made += not self._first
        if hasattr(value, "element_size"):
            self._bytes += value.numel() * value.element_size()
        if self._bytes > _MOST_BYTES:
            self._program.refuse("results-too-large")
        if len(self._kept) < _MOST_KEPT:
            self._kept[key] = (value, getattr(value, "_version", None))
