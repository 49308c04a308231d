"""From a training forward to the backward that ends it: where both stand in the user's code.

A step may hold several (a discriminator's and a generator's), each on lines of its own. Looked at
for the first backward passes of the observing launch alone.
"""

import sys

from .. import places

_MOST_BACKWARDS = 24  # enough for a generator that learns at every fifth step
_MOST_FORWARDS = 2_000  # an episode of single forwards may come before each backward
_DEEPEST = 40  # frames of the user's code


class Passes:
    """Every pair of places that was seen, once."""

    def __init__(self, session):
        self.on = session.phases and session.plan.get("purpose") == "observe"
        self._forwards = self._backwards = 0
        self._begun = None
        self._seen = []

    def forward(self, root, module):
        """Note a root's call in training mode, gradients on: the first since a backward counts."""
        if not self.on:
            return
        self._forwards += 1
        self.on = self._forwards < _MOST_FORWARDS
        frame = places.users_frame(sys._getframe(1))
        lines = _lines(frame)
        if self._begun is None or _loop_began_anew(self._begun["forward"], lines):
            name = places.name_of(frame, module) if frame is not None else None
            self._begun = {"model": root.ident, "name": name, "forward": lines}

    def backward(self):
        """Note that a backward pass begins."""
        begun, self._begun = self._begun, None
        self._backwards += 1
        self.on = self.on and self._backwards < _MOST_BACKWARDS
        if begun is not None:
            frame = sys._getframe(1)
            begun["library"] = _library(frame)
            begun["backward"] = _lines(places.users_frame(frame))
            if begun not in self._seen:
                self._seen.append(begun)

    def facts(self):
        """Return `passes` of the process facts."""
        return {"passes": self._seen}


def _lines(frame):
    """Return the lines of the user's code that led here, the innermost first."""
    locations = []
    while frame is not None and len(locations) < _DEEPEST:
        locations.append(places.of_frame(frame))
        frame = places.users_frame(frame.f_back)
    return locations


def _library(frame):
    """Return the package that the user's code called, where a library makes the backward pass."""
    library = None
    while frame is not None and not places.is_users(frame.f_code.co_filename):
        package = (frame.f_globals.get("__name__") or "").partition(".")[0]
        own = package == "torch" or "torchdoctor" in package
        if not own and package not in sys.stdlib_module_names:
            library = package
        frame = frame.f_back
    return library


def _loop_began_anew(before, now):
    """Return whether control went back up: what was called last before got no backward."""
    if not now or len(before) != len(now):
        return False
    last, first = before[0], now[0]
    same = (last["file"], last["function"]) == (first["file"], first["function"])
    return same and first["line"] < last["line"]
