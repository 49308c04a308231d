"""Turns the hooks' events into rows of steps, while they come.

It stands where the probe has its event log, whose codes it takes. Nested events count once: the
most specific phase that is open has the time, so that the phases of a step sum to the step.
"""

from _thread import get_ident
from array import array
from itertools import islice
from operator import add
from struct import Struct
from time import perf_counter_ns

from ...probe import dynamo_frames, step_log
from ...steps import evidence
from ...steps.rule import StepRule
from . import inferring, layout

CHECKPOINT_BEGIN, CHECKPOINT_END, EXCHANGE, FLAG = range(101, 105)  # beside the probe's
THINNED_FROM = 1_000_000  # steps
STEPS_PER_DETAIL = 150_000  # from there on a row covers this part of all steps so far
_LONGEST_ROW_NS = 8_000_000_000  # a kill loses no more than this
_MOST_IN_ROW = 65_000
_SLOW = 4.0  # times as long as its like
_MOST_HELD = 20_000  # events, until it is decided what a step is
_LEAN_NS = 5_000_000_000  # from then on what few events speak for counts, until it is decided
_WORK_NS = 250_000_000  # from one look at what came to the next
_PATIENCE_NS = 1_000_000_000  # for a boundary, which is the best moment for it
_BOUNDING = {
    "loader": step_log.FETCH_BEGIN,
    "optimizer": step_log.OPTIMIZER_END,
    "backward": step_log.BACKWARD_BEGIN,
    "entry": step_log.ENTRY_BEGIN,
    "forward": step_log.FORWARD_BEGIN,
    "explicit": step_log.EXPLICIT_STEP,
}
_LEARNS = step_log.BACKWARD_BEGIN, step_log.OPTIMIZER_BEGIN, step_log.GRADIENT_BEGIN
_EVENTS = {  # of the rule; `inferring` has those of a program that infers
    step_log.FETCH_BEGIN: evidence.FETCH,
    step_log.OPTIMIZER_BEGIN: evidence.OPTIMIZER_BEGIN,
    step_log.OPTIMIZER_END: evidence.OPTIMIZER_END,
    step_log.BACKWARD_BEGIN: evidence.BACKWARD_BEGIN,
    step_log.BACKWARD_END: evidence.BACKWARD_END,
    step_log.GRADIENT_BEGIN: evidence.GRADIENT,
    step_log.EXPLICIT_STEP: evidence.STEP,
}
_BY_LOADER = 1
_BY_MODE = 2
_pack = Struct("=qiiqq").pack  # thread, code, ident, time, value: code and ident are one number
_NUMBERS = 4  # of a row
_NEW_INPUT, _FLAG_BITS = 4, 3  # of a forward, beside "grad enabled" and "training"
_ROWS_BITS = 24
_MOST_ROWS = (1 << 24) - 1
_FINAL, _NEVER_ENDED = 1, 2  # bits of an exchange
_MOST_REPEATED = 256  # kinds of steps
_OPTIMIZER, _FORWARD, _BACKWARD, _WAIT, _CHECKPOINT = range(5)
_PAIRS = (
    (_OPTIMIZER, step_log.OPTIMIZER_BEGIN, step_log.OPTIMIZER_END),
    (_FORWARD, step_log.FORWARD_BEGIN, step_log.FORWARD_END),
    (_BACKWARD, step_log.BACKWARD_BEGIN, step_log.BACKWARD_END),
    (_BACKWARD, step_log.GRADIENT_BEGIN, step_log.GRADIENT_END),
    (_WAIT, step_log.LOADER_START_BEGIN, step_log.LOADER_START_END),
    (_WAIT, step_log.FETCH_BEGIN, step_log.FETCH_END),
    (_CHECKPOINT, CHECKPOINT_BEGIN, CHECKPOINT_END),
)
_SLOTS = {begin: (slot, 1) for slot, begin, _ in _PAIRS}
_SLOTS.update((end, (slot, -1)) for slot, _, end in _PAIRS)
_TELLING = (
    step_log.FETCH_END,
    step_log.FORWARD_BEGIN,
    step_log.ENTRY_BEGIN,
    step_log.COPY_END,
    step_log.GC_END,
    EXCHANGE,
)
_PARTIAL = len(step_log.GRADIENT_CALLS) - 1  # a gradient within the loss: nothing is learned


def _next(keys, key, start):
    """Return where a key is again, or 0."""
    try:
        return keys.index(key, start)
    except ValueError:
        return 0


class StepLog:
    """The steps of the thread that trains. `on_row(bytes)`, `on_event(t_ns, kind, ...)`.

    `place_of(loader number)` says where a loader was made: those of one line are one.
    """

    def __init__(self, on_row, on_event, place_of, wanted=None):
        self._on_row = on_row
        self._on_event = on_event
        self._place_of = place_of
        self._wanted = wanted
        self._pack = layout.row_of(layout.STEP_COLUMNS).pack
        self.at_boundary = []  # called with the time and the number of steps that have ended
        self.on_found = lambda kind, place, again: None
        self.on_learning = self.on_infers = lambda now: None  # until steps are found
        self.has_compiled = lambda: False  # whether torch.compile did since it was last asked
        self.restart(0)

    def restart(self, pid):
        """Begin anew, in a forked child."""
        self.last_code = 0  # of a backward pass: the hooks of gradients ask for it
        self._rows, self.due_ns = array("q"), perf_counter_ns()
        self._append = self._rows.frombytes
        self._boundary = array("q")  # the row of the last boundary, if nothing came after it
        self._repeated, self._is_odd = {}, False  # by their codes and idents
        self.step = 0  # that have ended
        self.totals = 0, [0.0] * len(layout.PHASES)  # steps with hooks, seconds of their phases
        self.kind = self.place = None  # what separates steps
        self._bounding = step_log.BACKWARD_END
        self.flags = 0
        self.entry_ns = 0
        self.exchanged_ns = 0
        self.off_steps = 0  # that ended while the hooks were off
        self.phase, self.phase_ns = layout.OTHER, perf_counter_ns()
        self._thread = None
        self._held = []
        self._rule = StepRule(self._wanted)
        self._kinds = _EVENTS
        self._decision = None
        self._begin_row(self.phase_ns)
        self._last_ns = self._step_ns = self.phase_ns
        self._step_s = [0] * len(layout.PHASES)  # ns
        self._samples = self._elements = 0.0
        self._open = [0] * 5
        self._evaluating = 0
        self._evaluated = (0, 0)
        self._learning, self._recent, self._feeding, self._trained = set(), [], [], set()
        self._interrupted_ns = 0
        self._begun = False
        self._slow_rows = self._thin_rows = self._usual_ns = 0

    @property
    def infers(self):
        """Return whether steps are calls of models that nothing is learned from."""
        return self._kinds is not _EVENTS

    def add(self, code, ident=0, value=0):
        """Take in an event that happens now; return its time (ns)."""
        now = perf_counter_ns()
        self._append(_pack(get_ident(), code, ident, now, value))
        if now > self.due_ns and (code == self._bounding or now > self.due_ns + _PATIENCE_NS):
            self.due_ns = now if self._thread is None else now + _WORK_NS
            self.work()
        return now

    def add_at(self, code, ident, t_ns, value=0):
        """Take in a copy or a garbage collection, whose end is told when it is over."""
        if code in (step_log.COPY_BEGIN, step_log.GC_BEGIN):
            self._interrupted_ns = t_ns
        else:
            took = t_ns - self._interrupted_ns
            self._append(_pack(get_ident(), code, 0, perf_counter_ns(), took))

    def forward(self, model, flags, elements=0, rows=0, is_new=False):
        """Take in that a forward begins, with its largest input if it trains."""
        ident = model << _FLAG_BITS | is_new << 2 | flags
        self.add(step_log.FORWARD_BEGIN, ident, elements << _ROWS_BITS | min(rows, _MOST_ROWS))

    def exchanged(self, entry_ns, is_final, has_ended=True):
        """Note an exchange between ranks; the step's first, unless it is the gradients' own."""
        self.add(EXCHANGE, is_final | (0 if has_ended else _NEVER_ENDED), entry_ns)

    def flag(self, bit):
        """Let the step that is under way have a flag."""
        self._append(_pack(get_ident(), FLAG, bit, perf_counter_ns(), 0))

    def rested(self, steps, now, at_loader=False):
        """Note that so many steps ended without hooks; a boundary follows, or a loader begins."""
        self.work()
        self.flags |= layout.PROBE_OFF
        self.off_steps = steps
        self._evaluating = 0
        self._open, self.phase, self.phase_ns = [0] * len(self._open), layout.OTHER, now
        self._boundary = array("q")
        self.due_ns = 0
        if at_loader and self.kind == "loader":
            self._rule.repeat(0)
            self._end_step(now)  # it may be that of an evaluation
        else:
            self._rule.learn()  # so that the next fetch is a boundary

    @dynamo_frames.quietly
    def work(self):
        """Take in what came since: all at once, as that costs a fraction of each by itself."""
        if not self._rows:
            return
        start = 0 if self._boundary else None
        rows, self._rows = self._boundary + self._rows, array("q")
        self._append, self._boundary = self._rows.frombytes, array("q")
        if self._thread is not None and rows[::_NUMBERS].count(self._thread) * _NUMBERS < len(rows):
            kept = [at for at in range(0, len(rows), _NUMBERS) if rows[at] == self._thread]
            rows = array("q", [number for at in kept for number in rows[at : at + _NUMBERS]])
        if rows and self._take_all(rows, start):  # right now: nothing has happened since
            self._boundary = rows[-_NUMBERS:]
            for function in self.at_boundary:
                function(self._last_ns, self.step)

    def _take_all(self, rows, start):
        """Take in rows, of which one is the boundary that was taken in last; True: the last is one.

        A step with the same events as an earlier one is not looked at event by event.
        """
        text = rows[1::_NUMBERS].tobytes()
        keys = rows[1::_NUMBERS].tolist()
        times = rows[2::_NUMBERS].tolist()
        values = rows[3::_NUMBERS].tolist()
        halves = memoryview(rows).cast("B").cast("i")  # of the keys
        compiled = self.has_compiled()
        decided = self._thread is not None
        at = int(start is not None)
        count = len(keys)
        boundary = False
        while at < count:
            if start is not None and not (compiled or self._rule.is_silent):
                end = _next(keys, keys[start], at)
                repeated = self._repeated.get(text[8 * start : 8 * end])
                if repeated is not None:
                    self._repeat(repeated, times[start : end + 1], values[start:end])
                    boundary = True
                    start = end
                    at = end + 1
                    continue
            before = self._state()
            learned = self._rule.learned
            phases = [self.phase]
            self._is_odd = boundary = False
            while at < count and not boundary:
                if compiled and at == count - 1:  # in the longest step, so likely the last one
                    self.flags |= layout.RECOMPILED
                event = halves[8 * at + 2], halves[8 * at + 3], times[at], values[at]
                if self._thread is None:
                    self._hold(rows[at * _NUMBERS], *event)
                elif rows[at * _NUMBERS] == self._thread:
                    boundary = self._take(*event)
                phases.append(self.phase)
                at += 1
            is_like = boundary and start is not None and before == self._state()
            if is_like and not self._is_odd and len(self._repeated) < _MOST_REPEATED:
                learned, end = self._rule.learned - learned, at - 1
                pairs = zip(halves[8 * start + 2 :: 8], halves[8 * start + 3 :: 8])  # noqa: B905
                telling = [
                    (place, code, ident)
                    for place, (code, ident) in enumerate(islice(pairs, end - start))
                    if code in _TELLING
                ]
                self._repeated[text[8 * start : 8 * end]] = phases, telling, learned
            start = at - 1 if boundary and decided else None
        return boundary and decided

    def _changed(self):
        """Look at all steps again: the same events mean something else from here on."""
        self._repeated.clear()
        self._is_odd = True

    def _state(self):
        """Return what decides how the next events are taken in."""
        return self._open[:], self.phase, self._evaluating, self._recent[:], self._feeding[:]

    def _repeat(self, repeated, times, values):
        """Take in a whole step with the phases, telling events and learning of an earlier one."""
        phases, telling, learned = repeated
        spent = self._step_s
        opened = self._open
        for phase, began, ended in zip(phases, times, times[1:]):  # noqa: B905 (Python 3.9)
            spent[phase] += ended - began
        for at, code, ident in telling:
            self.phase = phases[at]
            self._tell_value(code, ident, times[at], values[at])
        now = self._last_ns = self.phase_ns = times[-1]
        self._rule.repeat(learned)
        self._end_step(now)
        self._open, self.phase = opened, phases[-1]

    def _hold(self, thread, code, ident, now, value):
        held = self._held
        if len(held) >= _MOST_HELD:
            del held[: _MOST_HELD // 2]
        held.append((thread, code, ident, now, value))
        self._give(thread, code, ident, now)
        if code in (
            step_log.BACKWARD_END,
            step_log.OPTIMIZER_END,
            step_log.GRADIENT_END,
            step_log.EXPLICIT_STEP,
        ):
            self.on_learning(now)
            if self._rule.decision is not None:
                self._begin(self._rule.decision, False)
            elif now - held[0][3] > _LEAN_NS:
                leaning = self._rule.leaning(thread)
                if leaning is not None and leaning.is_sure:
                    self._begin(leaning, True)

    def _give(self, thread, code, ident, now):
        """Give the rule an event; return whether it separates two steps."""
        kind = self._kinds.get(code)
        if kind is None or (kind == evidence.GRADIENT and ident == _PARTIAL):
            return False
        return self._rule.add(kind, self._source(code, ident), thread, now)

    def _source(self, code, ident):
        """Return what the rule takes for the source of an event."""
        if code == step_log.FETCH_BEGIN:
            return self._place_of(ident)
        return ident >> _FLAG_BITS if code == step_log.FORWARD_BEGIN else ident

    def infer(self, is_last=False):
        """Take what came for calls of models that nothing is learned from; True: that is decided.

        `is_last`: nothing follows.
        """
        self.work()
        if self._thread is not None or self._rule.leaning() is not None or not self._held:
            return self.infers
        decided = inferring.decided(self._held, self._wanted, self._source, is_last)
        if decided is not None:
            self.on_infers(self._held[-1][3])
            decision, self._kinds = decided
            self._begin(decision, False)
        return self.infers

    def _learn(self, *event):
        """Begin anew with an event by which something is learned: it was an evaluation."""
        thread, self._thread, self._held = self._thread, None, []
        self._kinds, self._rule, self._decision = _EVENTS, StepRule(self._wanted), None
        self._begun = False
        self._bounding = step_log.BACKWARD_END
        self._changed()
        self._hold(thread, *event)

    def _begin(self, decision, provisional):
        """Take in all events of the thread that trains, of which it is known what a step is."""
        self._rule = StepRule(self._wanted, decision, provisional)
        self._thread, held, self._held = decision.thread, self._held, []
        self._found(decision, self.step > 0)
        self._last_ns = self._step_ns = self.phase_ns = held[0][3]
        self._begin_row(self._last_ns)
        for its, code, ident, now, value in held:
            if its == decision.thread:
                self._take(code, ident, now, value)

    def _found(self, decision, again):
        if decision.source == evidence.GRADIENTS:
            self.kind = decision.kind
            self.place = None
            self._bounding = step_log.GRADIENT_BEGIN
        else:
            self.kind = decision.kind
            self.place = decision.source
            self._bounding = _BOUNDING[self.kind]
        self._decision = decision
        self._changed()
        self.on_found(self.kind, self.place, again)

    def _take(self, code, ident, now, value):
        if code in _LEARNS and self.infers:
            self._learn(code, ident, now, value)
            return False
        boundary = self._give(self._thread, code, ident, now)
        if self._rule.decision is not self._decision:
            self._found(self._rule.decision, True)
        if boundary and not self._begun:
            self._begun = True
            if code not in (step_log.OPTIMIZER_END, step_log.EXPLICIT_STEP):
                boundary = False  # it begins the first step
                self._last_ns = self._step_ns = now
                self._step_s = [0] * len(self._step_s)
                self._begin_row(now)
        if boundary and code != step_log.OPTIMIZER_END:
            self._end_step(now)
        self._step_s[self.phase] += now - self._last_ns
        self._last_ns = now
        slot = _SLOTS.get(code)
        if slot is not None:
            number, change = slot
            opened = self._open[number] + change
            self._open[number] = opened if opened > 0 else 0
        self._tell(code, ident, now, value)
        self._switch_phase(now)
        if boundary and code == step_log.OPTIMIZER_END:
            self._end_step(now)
        return boundary

    def _switch_phase(self, now):
        opened = self._open
        if opened[_CHECKPOINT]:
            phase = layout.CHECKPOINT
        elif self._evaluating:
            phase = layout.EVALUATION
        elif opened[_WAIT]:
            phase = layout.WAIT
        elif opened[_BACKWARD]:
            phase = layout.BACKWARD
        elif opened[_FORWARD]:
            phase = layout.FORWARD
        else:
            phase = layout.OPTIMIZER if opened[_OPTIMIZER] else layout.OTHER
        if phase != self.phase:
            self.phase = phase
            self.phase_ns = now

    def _tell(self, code, ident, now, value):
        """Note what an event says beside its phase."""
        if code in _TELLING:
            self._tell_value(code, ident, now, value)
        if code == step_log.FETCH_END:
            if value == step_log.EXHAUSTED:
                del self._recent[-1:]  # which gave nothing to learn from
                self._evaluates(0, now)
        elif code == step_log.FETCH_BEGIN:
            place = self._place_of(ident)
            self._recent.append(place)
            if self._rule.learned or self.step:
                self._evaluates(_BY_LOADER if self._foreign(place) else 0, now)
        elif code == step_log.LOADER_START_BEGIN:
            place = self._place_of(ident)
            if place == self.place:
                self.flags |= layout.PASS_BEGAN
                self._is_odd = True
            elif self.step and self._foreign(place):
                self._evaluates(_BY_LOADER, now)
        elif code == step_log.FORWARD_BEGIN:
            if self._recent:
                self._feeding, self._recent = self._recent[-4:], []
            model = ident >> _FLAG_BITS
            if ident & 3 == 3 and not self.infers:
                if model not in self._trained:
                    self._changed()
                    self._trained.add(model)
                self._evaluates(0, now)
            elif not ident & 2 and model in self._trained and not self._evaluating:
                self._evaluates(_BY_MODE, now)
            if ident & _NEW_INPUT:
                self.flags |= layout.NEW_INPUT
        elif code in (step_log.BACKWARD_BEGIN, step_log.OPTIMIZER_BEGIN):
            if self._feeding or self._recent:
                learning = self._feeding or self._recent[-1:]
                if not self._learning.issuperset(learning):
                    self._changed()
                    self._learning.update(learning)
                self._feeding = []
                self._recent = []
            if self._evaluating:
                self._evaluates(0, now)
        elif code == FLAG:
            self.flags |= ident

    def _tell_value(self, code, ident, now, value):
        """Note the value of an event."""
        if code == step_log.FETCH_END:
            if value > 0 and self.kind == "loader" and not self._evaluating:
                self._samples += value
        elif code == step_log.FORWARD_BEGIN:
            self._elements += value >> _ROWS_BITS
            if self.kind not in ("loader", "entry"):
                self._samples += value & _MOST_ROWS
        elif code == step_log.ENTRY_BEGIN:
            if self.kind == "entry" and value > 0:
                self._samples += value
        elif code == EXCHANGE:
            if ident & _FINAL or not self.entry_ns:
                self.entry_ns = value
                self.exchanged_ns = 0 if ident & _NEVER_ENDED else now
        else:
            phase = layout.COPY if code == step_log.COPY_END else layout.GC
            took = min(value, self._step_s[self.phase])
            if took > 0:
                self._step_s[self.phase] -= took
                self._step_s[phase] += took

    def _foreign(self, place):
        """Return whether a loader's batches are not learned from, as far as is known."""
        return place != self.place and place not in self._learning and bool(self._learning)

    def _evaluates(self, how, now):
        if how == self._evaluating:
            return
        self._is_odd = True
        if not self._evaluating:
            self._evaluated = now
        elif not how and now - self._evaluated > 1_000_000:
            self._on_event(now, "evaluation", seconds=(now - self._evaluated) / 1e9)
        self._evaluating = how

    def _begin_row(self, now):
        self._row_ns = now
        self._row_steps = 0
        self._row_flags = 0
        self._row = [0] * len(layout.PHASES)
        self._row_samples = self._row_elements = 0.0

    def _end_step(self, now):
        """End the step that is under way: the next one begins here."""
        self._step_s[self.phase] += now - self._last_ns
        self._last_ns = now
        if self.kind in ("loader", "explicit"):
            self._open = [0] * len(self._open)  # what an exception left open
        self._is_odd |= bool(self.flags)
        steps = self.off_steps or 1
        self.step += steps
        if self.flags & layout.PROBE_OFF:
            self._step_s[layout.OTHER], rest = sum(self._step_s), self._step_s
            for phase in range(layout.OTHER):
                rest[phase] = 0
        took = now - self._step_ns
        thin = self.step > THINNED_FROM
        alone = not thin or self.flags & (layout.PROBE_OFF | layout.PROFILED) or self._slow(took)
        if alone and self._row_steps:
            self._write_row(self._step_ns, self.step - steps)
        self._row = [*map(add, self._row, self._step_s)]
        self._row_steps += steps
        self._row_flags |= self.flags
        self._row_samples += self._samples
        self._row_elements += self._elements
        wanted = min(-(-self.step // STEPS_PER_DETAIL), _MOST_IN_ROW)
        if alone or self._row_steps >= wanted or now - self._row_ns > _LONGEST_ROW_NS:
            self._write_row(now, self.step)
        self._step_s = [0] * len(self._row)
        self._samples = self._elements = 0.0
        self.flags = self.off_steps = self.entry_ns = self.exchanged_ns = 0
        self._step_ns = now

    def _slow(self, took):
        """Return whether a step of the thinned part is kept by itself; marks it."""
        if not self._usual_ns or took < _SLOW * self._usual_ns:
            return False
        if self._slow_rows * 10 > self._thin_rows + 100:
            return False
        self._slow_rows += 1
        self.flags |= layout.SLOW_STEP
        return True

    def _write_row(self, until_ns, last_step):
        """Write the row; it ends at a moment, with a step."""
        entry = exchanged = 0
        if self.entry_ns and last_step == self.step:
            entry = layout.coded((self.entry_ns - self._step_ns) / 1e9)
            exchanged = layout.coded((self.exchanged_ns - self._step_ns) / 1e9)
        phases = [spent * 1e-9 for spent in self._row]
        if not self._row_flags & layout.PROBE_OFF:
            steps, spent = self.totals
            self.totals = steps + self._row_steps, [*map(add, spent, phases)]
        self._on_row(
            self._pack(
                last_step,
                min(self._row_steps, _MOST_IN_ROW),
                self._row_flags,
                self._row_ns,
                *phases,
                self._row_samples,
                self._row_elements,
                entry,
                exchanged,
            )
        )
        if last_step > THINNED_FROM and self._row_steps > 1:
            self._usual_ns = (until_ns - self._row_ns) / self._row_steps
        self._thin_rows += last_step > THINNED_FROM
        self._begin_row(until_ns)

    def settle(self):
        """Take in what came, and the steps that it speaks for: nothing may follow to decide it."""
        self.work()
        leaning = self._rule.leaning() if self._thread is None else None
        if leaning is not None and leaning.is_sure:
            self._begin(leaning, True)
        elif leaning is None:
            self.infer(is_last=True)

    def end(self):
        """End the last step with its last event, as no boundary follows; write its row."""
        self.settle()
        learns = self._rule.learned > self._rule.bounded_at
        begun = self._begun and self.kind in ("backward", "entry", "forward")
        if (self.kind == "loader" and learns) or begun:
            self._end_step(self._last_ns)
        if self._thread is not None and self._row_steps:
            self._write_row(self._step_ns, self.step)
