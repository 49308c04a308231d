"""What other threads learn while the thread that trains learns nothing.

A training may move: the first epoch in the main thread, the later ones in a worker. Threads may
train at once too, where one is followed as long as it goes on.
"""

from array import array

from ...probe import step_log
from .event_rows import NUMBERS, code_of, ident_of

LEARNING_BEGINS = step_log.BACKWARD_BEGIN, step_log.OPTIMIZER_BEGIN, step_log.GRADIENT_BEGIN
_GRADIENT = step_log.GRADIENT_BEGIN, step_log.GRADIENT_END
_PARTIAL = len(step_log.GRADIENT_CALLS) - 1  # a gradient that is a part of a forward
_MOST_NUMBERS = 20_000 * NUMBERS  # that are kept of other threads


def is_partial(code, ident):
    """Return whether an event is of a gradient from which nothing is learned by itself."""
    return ident == _PARTIAL and code in _GRADIENT


class LearningElsewhere:
    """Events of other threads, from the first one on by which one of them learned."""

    def __init__(self):
        self._in_backward = False  # the followed thread: checkpoints have others learn within it
        self._forget()

    def _forget(self):
        self._learned = {}  # by thread
        self._rows = array("q")

    @property
    def has_begun(self):
        """Return whether another thread has learned since the followed one did."""
        return bool(self._learned)

    def take(self, followed, rows):
        """Take in events of all threads, of which one is followed."""
        for at in range(0, len(rows), NUMBERS):
            code = code_of(rows[at + 1])
            if rows[at] == followed:
                self._take_of_followed(code)
            else:
                self._take_of_other(code, rows[at : at + NUMBERS])
        if len(self._rows) > _MOST_NUMBERS:
            del self._rows[:-_MOST_NUMBERS]

    def _take_of_followed(self, code):
        if code in LEARNING_BEGINS:
            self._in_backward = code == step_log.BACKWARD_BEGIN
            if self._learned:
                self._forget()
        elif code == step_log.BACKWARD_END:
            self._in_backward = False

    def _take_of_other(self, code, row):
        if code in LEARNING_BEGINS and not self._in_backward:
            thread = row[0]
            is_learning = not is_partial(code, ident_of(row[1]))
            self._learned[thread] = self._learned.get(thread, 0) + is_learning
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
