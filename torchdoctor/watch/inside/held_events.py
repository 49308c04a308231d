"""Events that wait until it is decided what a step is, and so which thread's events count."""

from operator import itemgetter

_MOST_HELD = 20_000
_time_of = itemgetter(3)


class HeldEvents:
    """Events of all threads: (thread, code, ident, time, value), in the order of time.

    Where there are too many the older half is dropped: their steps get no row, but the rule of
    steps has counted them.
    """

    def __init__(self):
        self.clear()

    def clear(self):
        """Hold nothing."""
        self.events = []
        self._first_dropped_ns = None

    def add(self, event):
        """Hold an event that came last."""
        if len(self.events) >= _MOST_HELD:
            if self._first_dropped_ns is None:
                self._first_dropped_ns = self.since_ns()
            del self.events[: _MOST_HELD // 2]
        self.events.append(event)

    def add_earlier(self, events):
        """Hold events that happened before they came."""
        self.events += events
        self.events.sort(key=_time_of)

    def take(self):
        """Return the events, and hold nothing."""
        events = self.events
        self.clear()
        return events

    def since_ns(self):
        """Return when the first event happened, also if that was dropped."""
        return self.events[0][3] if self._first_dropped_ns is None else self._first_dropped_ns
