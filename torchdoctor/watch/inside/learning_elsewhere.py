"""What other threads learn while the thread that trains learns nothing.

A training may move: the first epoch in the main thread, the later ones in a worker. Threads may
train at once too, where one is followed as long as it goes on.
"""

from array import array

from ...probe import step_log
from .event_rows import NUMBERS, code_of, ident_of

_LEARNING_BEGINS = step_log.BACKWARD_BEGIN, step_log.OPTIMIZER_BEGIN, step_log.GRADIENT_BEGIN
_GRADIENT = step_log.GRADIENT_BEGIN, step_log.GRADIENT_END
_PARTIAL = len(step_log.GRADIENT_CALLS) - 1  # a gradient that is a part of a forward
_MOST_NUMBERS = 20_000 * NUMBERS  # that are kept of other threads


def is_partial(code, ident):
    """Return whether an event is of a gradient from which nothing is learned by itself."""
    return ident == _PARTIAL and code in _GRADIENT


def learns(code, ident):
    """Return whether something is learned with an event."""
    return code in _LEARNING_BEGINS and not is_partial(code, ident)


def _learns(key):
    return learns(code_of(key), ident_of(key))


class LearningElsewhere:
    """Events of other threads, from the first one on by which one of them learned."""

    def __init__(self):
        self._forget()

    def _forget(self):
        self._learned = {}  # by thread
        self._rows = array("q")

    @property
    def has_begun(self):
        """Return whether another thread has learned since the followed one did."""
        return bool(self._learned)

    @staticmethod
    def begins(rows, places):
        """Return whether something is learned with an event at one of the places."""
        return any(_learns(rows[NUMBERS * place + 1]) for place in places)

    def take(self, followed, rows, in_backward):
        """Take in events of all threads, of which one is followed.

        `in_backward`: that one is within a pass. What others learn then is a part of it, as
        checkpoints are computed again in a thread of autograd's own.
        """
        for at in range(0, len(rows), NUMBERS):
            key = rows[at + 1]
            has_learned = _learns(key)
            if rows[at] != followed:
                self._take_of_other(rows[at : at + NUMBERS], has_learned and not in_backward)
            elif has_learned:
                in_backward = code_of(key) == step_log.BACKWARD_BEGIN
                self._forget()
            elif code_of(key) == step_log.BACKWARD_END:
                in_backward = False
        if len(self._rows) > _MOST_NUMBERS:
            del self._rows[:-_MOST_NUMBERS]

    def _take_of_other(self, row, has_learned):
        if has_learned:
            self._learned[row[0]] = self._learned.get(row[0], 0) + 1
        if self._learned:
            self._rows.extend(row)

    def learner(self, most):
        """Return the thread that has learned more often than that; None: there is none."""
        thread = max(self._learned, key=self._learned.__getitem__, default=None)
        return thread if thread is not None and self._learned[thread] > most else None

    def rows_since(self, thread, since_ns):
        """Return the events of a thread, without those that happened before a time."""
        kept = array("q")
        for at in range(0, len(self._rows), NUMBERS):
            row = self._rows[at : at + NUMBERS]
            if row[0] == thread and row[2] >= since_ns:
                kept.extend(row)
        return kept
