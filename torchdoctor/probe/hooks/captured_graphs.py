"""CUDA graphs: what was noted while a graph was captured is noted again at each of its replays.

Nothing is computed while a stream captures, and neither a query nor a wait nor an event of ours is
allowed there. What a replay does within a pass that is noted anyway (as a graphed callable's, or
torch.compile's own graphs) is a part of that.
"""

import threading
import weakref

from .. import wrapping

_NOTES = "_torchdoctor_notes"


class CapturedGraphs:
    """The graphs of the process, with (begins, ended) of each pass within their captures."""

    def __init__(self, session):
        self._session = session
        # Of the capture that is going on; hooks look here before they call anything.
        self.notes = None
        self._thread = None
        self.within = 0  # passes that are noted and have not ended

    def install(self):
        """Wrap capture and replay, where torch has graphs."""
        cls = getattr(self._session.accelerator.module, "CUDAGraph", None)
        if cls is not None and self._session.accelerator.built:
            for name, make in (
                ("capture_begin", self._beginning),
                ("capture_end", self._ending),
                ("replay", self._replaying),
            ):
                wrapping.wrap(cls, name, make)

    def capturing(self):
        """Return True while this thread captures a graph."""
        return self.notes is not None and threading.get_ident() == self._thread

    def add(self, begins, ended, value):
        """Remember a pass of the capture: begins() and ended(value), which is not kept alive."""
        try:
            held = weakref.ref(value)
        except TypeError:
            held = _nothing
        self.notes.append((begins, ended, held))

    def _beginning(self, old):
        def capture_begin(graph, *args, **kwargs):
            if not self._session.on or self.within:
                return old(graph, *args, **kwargs)
            try:
                result = old(graph, *args, **kwargs)
            except BaseException as error:
                self._session.hide_frames(error)
                raise
            self.notes, self._thread = [], threading.get_ident()
            return result

        return capture_begin

    def _ending(self, old):
        def capture_end(graph, *args, **kwargs):
            if self.capturing():
                setattr(graph, _NOTES, self.notes)
                self.notes = None
            try:
                return old(graph, *args, **kwargs)
            except BaseException as error:
                self._session.hide_frames(error)
                raise

        return capture_end

    def _replaying(self, old):
        session = self._session

        def replay(graph, *args, **kwargs):
            notes = getattr(graph, _NOTES, None)
            if not notes or self.within or not session.on:
                return old(graph, *args, **kwargs)
            begins, ended, held = notes[0]
            self._call(begins)
            try:
                result = old(graph, *args, **kwargs)
            except BaseException as error:
                session.hide_frames(error)
                raise
            # One after the other, at once: nobody sees from outside where the next one begins.
            self._call(ended, held())
            for begins, ended, held in notes[1:]:
                self._call(begins)
                self._call(ended, held())
            return result

        return replay

    def _call(self, function, *args):
        try:
            function(*args)
        except Exception as error:
            self._session.fail("replay", error)


def _nothing():
    return None
