"""Writes steps that have ended as rows: one each, or one for several, which holds their sums.

Steps share rows from the millionth on, and where they are brief: a disk need not keep up with a
hundred thousand calls a second. One that is much slower than its like, or was profiled, or passed
without hooks, keeps a row of its own all the same. While the rows that wait for the disk leave no
room, all steps share one, so that none is lost.
"""

from operator import add

from . import layout, resting

THINNED_FROM = 1_000_000  # steps
STEPS_PER_DETAIL = 150_000  # from there on a row covers this part of all steps so far
_BRIEF_NS = 100_000  # shorter steps share a row
_SHORTEST_ROW_NS = 1_000_000  # that they share
_LONGEST_ROW_NS = 8_000_000_000  # a kill loses no more than this
# The column `steps` holds 65,535, and the last ones may be a block of steps without hooks.
_MOST_IN_ROW = 65_535 - resting.MOST_STEPS
_SLOW = 4.0  # times as long as its like
# As many rows of several steps as there are at least for each row of one slow step; but for a few.
_ROWS_PER_SLOW = 10
_FIRST_ROWS = 100
_APART = layout.PROBE_OFF | layout.PROFILED


class StepRows:
    """The row that is being filled; `on_row(bytes)` gets each that is full, if it `has_room()`."""

    def __init__(self, on_row, has_room, now):
        self._on_row = on_row
        self._has_room = has_room
        self._pack = layout.row_of(layout.STEP_COLUMNS).pack
        self.totals = 0, [0.0] * len(layout.PHASES)  # steps with hooks, seconds of their phases
        self._shared_rows = 0
        self._slow_rows = 0
        self._usual_ns = 0  # of a step in the last row of several
        self.begin(now)

    def begin(self, now):
        """Begin an empty row; what the last one holds is dropped, if it was not written."""
        self._began_ns = now
        self._steps = 0
        self._rested_steps = 0  # of these, without hooks
        self._rested_ns = 0  # their time, which is all in the phase "other"
        self._flags = 0
        self._spent_ns = [0] * len(layout.PHASES)
        self._samples = 0.0
        self._elements = 0.0

    def add(self, step, now):
        """Add a step that ends now; `step` is the `StepUnderWay`, already with its number."""
        flags = step.flags
        took_ns = now - step.began_ns
        is_alone = (step.number <= THINNED_FROM and took_ns >= _BRIEF_NS) or flags & _APART
        if not is_alone and self._is_slow(took_ns):
            is_alone = True
            flags |= layout.SLOW_STEP
        if is_alone and self._steps:
            self._write(step.began_ns, step.number - step.steps)
        self._spent_ns = [*map(add, self._spent_ns, step.spent_ns)]
        self._steps += step.steps
        self._flags |= flags
        self._samples += step.samples
        self._elements += step.elements
        if flags & layout.PROBE_OFF:
            self._rested_steps += step.steps
            self._rested_ns += step.spent_ns[layout.OTHER]
        if self._flags & layout.PROBE_OFF and self._rested_steps < self._steps:
            # There was no room for the row before: not all of this one passed without hooks.
            self._flags = self._flags & ~layout.PROBE_OFF | layout.PROFILED
        if is_alone or self._is_full(step.number, now):
            entry = 0
            exchanged = 0
            if step.entry_ns:
                entry = layout.coded((step.entry_ns - step.began_ns) / 1e9)
                exchanged = layout.coded((step.exchanged_ns - step.began_ns) / 1e9)
            self._write(now, step.number, entry, exchanged)

    def write_rest(self, until_ns, last_step):
        """Write the row as it is, if it holds a step: nothing more comes."""
        if self._steps:
            self._write(until_ns, last_step, is_last=True)

    def _is_slow(self, took_ns):
        """Return whether a step that may share a row is to be kept by itself; counts it."""
        if not self._usual_ns or took_ns < _SLOW * self._usual_ns:
            return False
        if self._slow_rows * _ROWS_PER_SLOW > self._shared_rows + _FIRST_ROWS:
            return False
        self._slow_rows += 1
        return True

    def _is_full(self, step_number, now):
        took_ns = now - self._began_ns
        steps_of_row = min(-(-step_number // STEPS_PER_DETAIL), _MOST_IN_ROW)
        is_of_enough = self._steps >= steps_of_row and took_ns >= _SHORTEST_ROW_NS
        return is_of_enough or took_ns > _LONGEST_ROW_NS

    def _write(self, until_ns, last_step, entry=0, exchanged=0, is_last=False):
        """Write the row and begin the next one; without room for it the row goes on.

        `entry`, `exchanged`: of the last step's exchange between ranks, as `layout.coded`.
        """
        steps = self._steps
        if steps < _MOST_IN_ROW and not is_last and not self._has_room():
            return
        phases_s = [spent_ns * 1e-9 for spent_ns in self._spent_ns]
        counted, seconds = self.totals
        seconds = [*map(add, seconds, phases_s)]
        seconds[layout.OTHER] -= self._rested_ns * 1e-9
        self.totals = counted + steps - self._rested_steps, seconds
        row = self._pack(
            last_step,
            steps,
            self._flags,
            self._began_ns,
            *phases_s,
            self._samples,
            self._elements,
            entry,
            exchanged,
        )
        self._on_row(row)
        if steps > 1:
            self._shared_rows += 1
            self._usual_ns = (until_ns - self._began_ns) / steps
        self.begin(until_ns)
