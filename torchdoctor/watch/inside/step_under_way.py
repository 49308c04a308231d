"""What the step under way has so far: the time of its phases, its samples, flags and exchanges.

Of nested calls the most specific one has the time, and time is given to one phase only, so that the
phases of a step sum to the step. An evaluation is a phase too: it begins with a batch of a loader
that nothing is learned from, or with a forward of a model that trains otherwise, and ends with what
trains again.
"""

from ...probe import step_log
from . import layout
from .event_rows import (
    CHECKPOINT_BEGIN,
    CHECKPOINT_END,
    EXCHANGE,
    FINAL,
    FLAG,
    FORWARD_BITS,
    LEARNING,
    MOST_ROWS,
    NEVER_ENDED,
    NEW_INPUT,
    ROWS_BITS,
    TRAINING,
)
from .learning_elsewhere import is_partial

# Events whose value counts in each step, also in one that is taken in at once.
TELLING = (
    step_log.FETCH_END,
    step_log.FORWARD_BEGIN,
    step_log.ENTRY_BEGIN,
    step_log.COPY_END,
    step_log.GC_END,
    EXCHANGE,
)

_NO_TIME = [0] * len(layout.PHASES)  # copied: that is faster than to make it
_NOT, _BY_LOADER, _BY_MODE = range(3)  # how an evaluation shows
_LEAST_EVALUATION_NS = 1_000_000  # a shorter one is no event
_MOST_FEEDING = 4  # loaders whose batches one forward gets

# What may be open: how many calls of each is counted, as they may nest.
_OPTIMIZER, _FORWARD, _BACKWARD, _WAIT, _CHECKPOINT = range(5)
_CALLS = (
    (_OPTIMIZER, step_log.OPTIMIZER_BEGIN, step_log.OPTIMIZER_END),
    (_FORWARD, step_log.FORWARD_BEGIN, step_log.FORWARD_END),
    (_BACKWARD, step_log.BACKWARD_BEGIN, step_log.BACKWARD_END),
    (_BACKWARD, step_log.GRADIENT_BEGIN, step_log.GRADIENT_END),
    (_WAIT, step_log.LOADER_START_BEGIN, step_log.LOADER_START_END),
    (_WAIT, step_log.FETCH_BEGIN, step_log.FETCH_END),
    (_CHECKPOINT, CHECKPOINT_BEGIN, CHECKPOINT_END),
)
_OPENS = {begin: kind for kind, begin, _ in _CALLS}
_CLOSES = {end: kind for kind, _, end in _CALLS}


class StepUnderWay:
    """The step that has begun last; when it ends, `rows` gets it and the next one begins.

    `repeats` is told what happens once. `on_event(t_ns, kind, ...)` gets evaluations.
    """

    def __init__(self, rows, repeats, place_of, on_event, now):
        self._rows = rows
        self._repeats = repeats
        self._place_of = place_of
        self._on_event = on_event
        # What is decided of steps: `StepLog` sets these.
        self.rule = None
        self.kind = None  # of what separates steps
        self.place = None  # of the loader, or the number of the optimizer or model, that does
        self.infers = False  # steps are calls of models that nothing is learned from
        # The step: `StepRows.add` reads these.
        self.number = 0  # of the last step that has ended
        self.steps = 1  # that it stands for: more, if the hooks were off
        self.flags = 0
        self._empty(now)
        # Where the program is.
        self.last_ns = now  # up to here the time has been given to phases
        self.phase = layout.OTHER
        self.phase_ns = now  # when it began
        self._open = [0] * 5
        # Evaluations.
        self._evaluating = _NOT  # or how the evaluation shows that the program is in
        self._evaluation_ns = 0  # when it began
        self._fetched = []  # places of the loaders fetched since the last forward, the last ones
        self._feeding = []  # of those that the last forward had its batch from
        self._learned_from = set()  # places of loaders
        self._trained = set()  # models
        self._notes = {
            step_log.FETCH_BEGIN: self._note_fetch,
            step_log.FETCH_END: self._note_batch,
            step_log.LOADER_START_BEGIN: self._note_pass,
            step_log.FORWARD_BEGIN: self._note_forward,
            step_log.BACKWARD_BEGIN: self._note_learning,
            step_log.OPTIMIZER_BEGIN: self._note_learning,
            step_log.GRADIENT_BEGIN: self._note_gradient,
            step_log.EXPLICIT_STEP: self._note_explicit,
            FLAG: self._note_flag,
        }

    @property
    def is_in_backward(self):
        """Return whether a backward pass has begun and not ended."""
        return self._open[_BACKWARD] > 0

    def state(self):
        """Return all that decides, beside the events, in which phases they come, and what learns.

        Calls of torch.autograd.grad learn until the first backward pass.
        """
        where = self._open[:], self.phase, self._evaluating
        return (*where, self._fetched[:], self._feeding[:], self.rule.has_passes)

    def begin_at(self, now):
        """Let the step begin here: what came before it belongs to no step."""
        self._rows.write_rest(self.began_ns, self.number)
        self.last_ns = now
        self._empty(now)  # but for its flags: an epoch begins before the first batch is fetched
        self._rows.begin(now)

    def _empty(self, now):
        """Let the step begin, and have nothing so far."""
        self.began_ns = now
        self.spent_ns = _NO_TIME[:]
        self.samples = 0.0
        self.elements = 0.0
        self.entry_ns = 0  # this rank was ready for the exchange between ranks; 0: there is none
        self.exchanged_ns = 0  # and that had ended

    def forget_open(self):
        """Let nothing be open: the next events are of another thread."""
        self._open = [0] * len(self._open)
        self._evaluating = _NOT
        self._fetched = []
        self._feeding = []
        self.phase = layout.OTHER

    def take(self, code, ident, now, value):
        """Take in an event."""
        self.spent_ns[self.phase] += now - self.last_ns
        self.last_ns = now
        if code in _OPENS:
            self._open[_OPENS[code]] += 1
        elif code in _CLOSES:
            kind = _CLOSES[code]
            if self._open[kind]:  # what began before the hooks were there only ends
                self._open[kind] -= 1
        if code in TELLING:
            self._take_value(code, ident, now, value)
        note = self._notes.get(code)
        if note is not None:
            note(ident, now, value)
        phase = self._phase()
        if phase != self.phase:
            self.phase = phase
            self.phase_ns = now

    def _phase(self):
        opened = self._open
        if opened[_CHECKPOINT]:
            return layout.CHECKPOINT
        if self._evaluating:
            return layout.EVALUATION
        if opened[_WAIT]:
            return layout.WAIT
        if opened[_BACKWARD]:
            return layout.BACKWARD
        if opened[_FORWARD]:
            return layout.FORWARD
        if opened[_OPTIMIZER]:
            return layout.OPTIMIZER
        return layout.OTHER

    def repeat(self, phases, telling, times, values):
        """Take in a whole step that is as an earlier one, but for its times and values.

        Times and values are of the boundary that began it, which was taken in with its value, of
        each event after it, and of the boundary that ends it: with its value the next step begins.
        """
        spent_ns = self.spent_ns
        last = len(times) - 1
        for phase, began, ended in zip(phases, times, times[1:]):  # noqa: B905 (Python 3.9)
            spent_ns[phase] += ended - began
        for place, code, ident in telling:
            if place < last:
                self.phase = phases[place]
                self._take_value(code, ident, times[place], values[place])
        now = times[last]
        self.last_ns = now
        self.phase_ns = now
        opened = self._open  # `end` may close all, but the state is the same as in the beginning
        self.end(now)
        self._open = opened
        self.phase = phases[-1]
        if telling and telling[-1][0] == last:
            _, code, ident = telling[-1]
            self._take_value(code, ident, now, values[last])

    def end(self, now):
        """End the step: the next one begins here."""
        self.spent_ns[self.phase] += now - self.last_ns
        self.last_ns = now
        if self.kind in ("loader", "explicit"):
            self._open = [0] * len(self._open)  # what an exception left open
        if self.flags:
            self._repeats.is_odd = True
            if self.flags & layout.PROBE_OFF:
                whole_ns = sum(self.spent_ns)  # nobody saw in which phases it was
                self.spent_ns = _NO_TIME[:]
                self.spent_ns[layout.OTHER] = whole_ns
        self.number += self.steps
        self._rows.add(self, now)
        self._empty(now)
        self.steps = 1
        self.flags = 0

    def rested(self, steps, now):
        """Let it stand for so many steps that passed without hooks: what was open is not known."""
        self.flags |= layout.PROBE_OFF
        self.steps = steps
        self._evaluating = _NOT
        self._open = [0] * len(self._open)
        self.phase = layout.OTHER
        self.phase_ns = now

    def _take_value(self, code, ident, now, value):
        """Take in the value of a telling event."""
        if code == step_log.FETCH_END:
            if value > 0 and self.kind == "loader" and not self._evaluating:
                self.samples += value
        elif code == step_log.FORWARD_BEGIN:
            self.elements += value >> ROWS_BITS
            if self.kind not in ("loader", "entry"):  # these have a better word for samples
                self.samples += value & MOST_ROWS
        elif code == step_log.ENTRY_BEGIN:
            if self.kind == "entry" and value > 0:
                self.samples += value
        elif code == EXCHANGE:
            # The step's first one, unless it is the gradients' own.
            if ident & FINAL or not self.entry_ns:
                self.entry_ns = value
                self.exchanged_ns = 0 if ident & NEVER_ENDED else now
        else:  # a copy or a collection took so long out of the phase that it interrupted
            interruption = layout.COPY if code == step_log.COPY_END else layout.GC
            took_ns = min(value, self.spent_ns[self.phase])
            if took_ns > 0:
                self.spent_ns[self.phase] -= took_ns
                self.spent_ns[interruption] += took_ns

    def _note_fetch(self, ident, now, _):
        place = self._place_of(ident)
        self._fetched.append(place)
        del self._fetched[:-_MOST_FEEDING]  # where no model is known no forward takes them
        if self.rule.learned or self.number:
            self._evaluate(_BY_LOADER if self._is_of_evaluation(place) else _NOT, now)

    def _note_batch(self, _, now, value):
        if value == step_log.EXHAUSTED:
            del self._fetched[-1:]  # which gave nothing to learn from
            self._evaluate(_NOT, now)

    def _note_pass(self, ident, now, _):
        place = self._place_of(ident)
        if place == self.place:
            self.flags |= layout.PASS_BEGAN
            self._repeats.is_odd = True
        elif self.number and self._is_of_evaluation(place):
            self._evaluate(_BY_LOADER, now)

    def _note_forward(self, ident, now, _):
        if self._fetched:
            self._feeding = self._fetched
            self._fetched = []
        model = ident >> FORWARD_BITS
        if ident & LEARNING == LEARNING and not self.infers:
            if model not in self._trained:
                self._repeats.forget()
                self._trained.add(model)
            self._evaluate(_NOT, now)
        elif not ident & TRAINING and model in self._trained and not self._evaluating:
            self._evaluate(_BY_MODE, now)
        if ident & NEW_INPUT:
            self.flags |= layout.NEW_INPUT

    def _note_learning(self, _, now, __):
        """Note that a backward or an optimizer's step begins: it learns from the last batches."""
        places = self._feeding or self._fetched[-1:]
        if places:
            if not self._learned_from.issuperset(places):
                self._repeats.forget()
                self._learned_from.update(places)
            self._feeding = []
            self._fetched = []
        self._evaluate(_NOT, now)

    def _note_gradient(self, ident, now, value):
        """Note a gradient by itself: where passes are made it is a part of what they go through."""
        if not is_partial(step_log.GRADIENT_BEGIN, ident) and not self.rule.has_passes:
            self._note_learning(ident, now, value)

    def _note_explicit(self, *_):
        if self.kind != "explicit":
            self._repeats.is_odd = True  # the rule counts these: after some they separate steps

    def _note_flag(self, bit, *_):
        self.flags |= bit

    def _is_of_evaluation(self, place):
        """Return whether a loader's batches are not learned from, as far as is known."""
        return bool(self._learned_from) and place != self.place and place not in self._learned_from

    def _evaluate(self, how, now):
        """Let an evaluation begin, go on another way, or end (`_NOT`)."""
        before = self._evaluating
        if how == before:
            return
        self._repeats.is_odd = True
        self._evaluating = how
        if not before:
            self._evaluation_ns = now
        elif not how and now - self._evaluation_ns > _LEAST_EVALUATION_NS:
            self._on_event(now, "evaluation", seconds=(now - self._evaluation_ns) / 1e9)
