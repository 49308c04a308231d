"""The events of a watched process as rows of numbers, and what their codes and idents mean.

A row is thread, key, time and value. A key holds code and ident in one number, so that one look at
the keys tells whether two steps have the same events.
"""

import sys
from struct import Struct

# Codes beside those of `probe.step_log`.
CHECKPOINT_BEGIN = 101
CHECKPOINT_END = 102
EXCHANGE = 103  # between ranks; value: the time when this rank was ready for it
FLAG = 104  # of the step under way; ident: a bit of `layout`'s

# The ident of a forward: the model, and in its lowest bits
GRAD_ENABLED = 1
TRAINING = 2
LEARNING = GRAD_ENABLED | TRAINING
NEW_INPUT = 4
FORWARD_BITS = 3
# The value of a forward: elements of the largest input, and in its lowest bits that input's rows.
ROWS_BITS = 24
MOST_ROWS = (1 << ROWS_BITS) - 1
MOST_ELEMENTS = (1 << 63 - ROWS_BITS) - 1  # an expanded tensor takes no memory for its elements
# Bits of an exchange's ident.
FINAL = 1
NEVER_ENDED = 2

NUMBERS = 4  # of a row
KEY_BYTES = 8
pack = Struct("=qiiqq").pack  # thread, code, ident, time, value; code and ident are the key


def code_of(key):
    """Return the code of a row's key."""
    return key & 0x7FFFFFFF if sys.byteorder == "little" else key >> 32


def ident_of(key):
    """Return the ident of a row's key."""
    return key >> 32 if sys.byteorder == "little" else key & 0xFFFFFFFF


class EventRows:
    """Rows by their columns: lists are faster to go through than an array."""

    def __init__(self, rows):
        self._rows = rows
        keys = rows[1::NUMBERS]
        self._keys = keys.tolist()
        self.count = len(self._keys)
        key_bytes = keys.tobytes()
        self._key_bytes = key_bytes
        self.times = rows[2::NUMBERS].tolist()
        self.values = rows[3::NUMBERS].tolist()
        self._halves = memoryview(key_bytes).cast("i")  # code, ident, code, ident, ...

    def event(self, at):
        """Return an event: (thread, code, ident, time, value)."""
        halves = self._halves
        thread = self._rows[NUMBERS * at]
        return thread, halves[2 * at], halves[2 * at + 1], self.times[at], self.values[at]

    def sequence_from(self, start, after):
        """Return the sequence from `start` up to where that event comes again, and that place.

        It comes again after a place. Where it does not the sequence is empty.
        """
        try:
            end = self._keys.index(self._keys[start], after + 1)
        except ValueError:
            end = start
        return self._key_bytes[KEY_BYTES * start : KEY_BYTES * end], end

    def after(self, start, end, codes):
        """Return (place from the start, code, ident) of events that have one of the codes.

        They come after the event at `start`; the one at `end` is the last.
        """
        halves = self._halves
        events = []
        for at in range(start + 1, end + 1):
            code = halves[2 * at]
            if code in codes:
                events.append((at - start, code, halves[2 * at + 1]))
        return events

    def sequence(self, start, end):
        """Return what is equal for the same events in the same order."""
        return self._key_bytes[KEY_BYTES * start : KEY_BYTES * end]


def places_of_others(rows, thread):
    """Return the places of the rows that are not of a thread."""
    threads = rows[::NUMBERS]
    if threads.count(thread) == len(threads):
        return []
    return [at for at, its_thread in enumerate(threads) if its_thread != thread]


def without(rows, places):
    """Return rows without those at some places, which are in order."""
    if not places:
        return rows
    kept = rows[:0]
    first = 0  # after the last place
    for place in places:
        if place > first:
            kept.extend(rows[NUMBERS * first : NUMBERS * place])
        first = place + 1
    kept.extend(rows[NUMBERS * first :])
    return kept
