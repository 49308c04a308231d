"""Calls that several threads make of one model or entry point, which may overlap.

For them the log of steps holds what passes on the clock, from the begin of one call to that of the
next one, in whatever thread: so it tells how many there are a second. What each call took by itself
is counted here.
"""

from math import log2

from ...probe import step_log
from .event_rows import FORWARD_BITS

ANY_THREAD = 0  # no thread's number
BINS_PER_OCTAVE = 8  # of the time of a call in microseconds, plus one
_SHARE = 0.1  # of the calls, in other threads, to count as calls of several threads
_FEWEST_ELSEWHERE = 5  # calls of these: fewer may be chance
_MOST_LOOKED_AT = round(_FEWEST_ELSEWHERE / _SHARE)  # calls, before the count begins anew
_CALLS = {  # by the kind of what separates steps
    "forward": (step_log.FORWARD_BEGIN, step_log.FORWARD_END, FORWARD_BITS),
    "entry": (step_log.ENTRY_BEGIN, step_log.ENTRY_END, 0),
}
_BEGINS = step_log.FORWARD_BEGIN, step_log.ENTRY_BEGIN


class OverlappingCalls:
    """The times of calls that have ended, each from its begin to its end in one thread."""

    def __init__(self):
        self.follow(None, None)
        self.calls = 0
        self._most = 0
        self._total_ns = self._longest_ns = 0
        self._bins = {}

    def follow(self, kind, place):
        """Count the calls that separate steps from here on; none where something else does."""
        self._begin, self._end, self._bits = _CALLS.get(kind, (None, None, 0))
        self._place = place
        self._began = {}  # by thread

    def take(self, thread, code, ident, now):
        """Take in an event of one of the threads. The end of another model's call ends none."""
        if code == self._begin:
            if ident >> self._bits == self._place:
                self._began[thread] = now
                self._most = max(self._most, len(self._began))
        elif code == self._end and ident == self._place and thread in self._began:
            took_ns = max(now - self._began.pop(thread), 0)
            self.calls += 1
            self._total_ns += took_ns
            self._longest_ns = max(self._longest_ns, took_ns)
            number = int(BINS_PER_OCTAVE * log2(1 + took_ns / 1000))
            self._bins[number] = self._bins.get(number, 0) + 1

    def facts(self):
        """Return `Process.overlapping`; None: all calls were made by one thread."""
        if not self.calls:
            return None
        return {
            "most_at_once": self._most,
            "calls": self.calls,
            "total_s": self._total_ns / 1e9,
            "longest_s": self._longest_ns / 1e9,
            "bins": sorted(self._bins.items()),
        }


class CallsElsewhere:
    """Counts the calls in the thread that is followed, and those in others.

    Not all calls are waited for: the count goes on until it tells something, then begins anew. So a
    thread that takes the calls over is soon seen, however many the first one made before.
    """

    def __init__(self):
        self._forget()

    @property
    def has_begun(self):
        """Return whether a call of another thread was counted, so that all calls are."""
        return self._elsewhere > 0

    def _forget(self):
        self._here = 0
        self._elsewhere = 0

    def are_many(self, followed, threads, codes):
        """Take in events by their threads and codes; return whether to follow all threads.

        Until then calls of other threads are dropped: up to four of them, or a tenth of all.
        """
        for thread, code in zip(threads, codes):  # noqa: B905 (Python 3.9)
            if code in _BEGINS:
                if thread == followed:
                    self._here += 1
                else:
                    self._elsewhere += 1
        calls = self._here + self._elsewhere
        if self._elsewhere >= _FEWEST_ELSEWHERE and self._elsewhere > _SHARE * calls:
            return True
        if calls >= _MOST_LOOKED_AT:
            self._forget()
        return False


def calling_thread(events):
    """Return the thread that makes the calls, `ANY_THREAD` if several do; None: there are none.

    `events`: an iterable of (thread, code).
    """
    calls = {}
    for thread, code in events:
        if code in _BEGINS:
            calls[thread] = calls.get(thread, 0) + 1
    if not calls:
        return None
    busiest = max(calls, key=calls.__getitem__)
    total = sum(calls.values())
    return ANY_THREAD if total - calls[busiest] > _SHARE * total else busiest
