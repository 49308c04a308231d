"""Steps as earlier ones were: known by their sequence of events, they are taken in at once.

Nearly all steps of a training have the same events in the same order. Such a step needs new times
and values only: its phases, and what the rule of steps learned from it, are those of the first.
A sequence holds the boundary that begins the step, and not the one that ends it. The value of a
boundary is that of the step that it begins: it is taken in with the step before.

The first one is kept if all of this holds:
- it was taken in event by event, from one boundary up to the next;
- at both the program was in the same state (`StepUnderWay.state`), so that the same events lead
  through the same phases;
- it was not odd: nothing happened in it that happens once, like an evaluation or a new shape.

Another one is taken in by it only if it begins in the same state.

What is kept is forgotten whenever events begin to mean something else: another decision on what
separates steps, a model or a loader of which it turns out that it trains.
"""

from .event_rows import KEY_BYTES

_MOST_KEPT = 256  # kinds of steps: a program whose steps all differ gains nothing by more


class RepeatedSteps:
    """What is known of steps by their sequence of events.

    That is a tuple of what `keep` is told: state, phases, telling events, learned.
    """

    def __init__(self):
        self.by_sequence = {}
        self.most_within = 0  # times that a step has the event of its boundary once more within it
        self.is_odd = False  # the step under way is no pattern for others

    def forget(self):
        """Look at all steps again: the same events mean something else from here on."""
        self.by_sequence.clear()
        self.most_within = 0
        self.is_odd = True

    def may_keep(self):
        """Return whether the step under way may be a pattern for others."""
        return not self.is_odd and len(self.by_sequence) < _MOST_KEPT

    def keep(self, sequence, state, phases, telling, learned):
        """Keep a step: its phases, telling events, and how much the rule learned from it.

        `state`: in which it began and ended, as `StepUnderWay.state`.
        `phases`: after the boundary that begins it, and after each event up to the one that ends
        it. `telling`: (place, code, ident) of each event whose value counts, from the first one
        after that boundary (place 1) up to the boundary that ends it.
        """
        self.by_sequence[sequence] = state, phases, telling, learned
        within = sequence.count(sequence[:KEY_BYTES]) - 1
        self.most_within = max(self.most_within, within)

    def of_several(self, events, start, end):
        """Return what is known of a step that goes on after `end`, and where it ends instead.

        There the event of its boundary came within it, as a second batch of the same loader does.
        """
        for _ in range(self.most_within):
            sequence, end = events.sequence_from(start, end)
            if not sequence:
                break
            if sequence in self.by_sequence:
                return self.by_sequence[sequence], end
        return None, start
