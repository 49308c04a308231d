"""Turns the hooks' events into rows of steps, while they come.

A hook notes an event (a fetch begins, a forward ends ...) as four numbers in a buffer: thread, what
and of whom, time, value. A few times a second the buffer is taken in, all at once, as that costs a
fraction of each event by itself. `steps.rule` says which events separate two steps: the boundaries.
From one boundary to the next the time between events is given to phases, and samples are added up;
at the next one the step has ended, and becomes a row of the log, or a part of one.

    add, forward, exchanged, flag ...   what hooks call: an event into the buffer
    work                                the buffer, taken in
    _hold                               until it is decided what a step is: events are kept, and
                                        given to the rule
    _begin                              once it is: those that were kept are taken in
    _take_all                           from then on: from boundary to boundary
        RepeatedSteps                   a step with the same events as an earlier one, at once
        _take_step, _take               any other one, event by event
    StepUnderWay                        gives each event's time to a phase, and takes its value
    StepRows                            gets each step that has ended, and writes rows

Events of one thread count: that which trains, or calls the models; others' are dropped. Where
several threads call them all count (`overlapping_calls`). The rule may decide anew at any event
(`_found`). What was taken for inference is begun again with the first event by which something is
learned (`_learn`).

Words of the rule:
    learned         how many backward passes and optimizer steps there were; `learn` counts one that
                    no event tells, `repeat` those of a step that is taken in at once
    bounded_at      how many these were at the last boundary
    is_silent       boundaries are missing: the rule gathers evidence for another decision
    leaning         what few events speak for, before it decides; `is_sure`: they are enough to
                    name it
    provisional     a leaning that stands for a decision until the rule makes one
"""

from _thread import RLock, get_ident
from array import array
from operator import itemgetter
from time import perf_counter_ns

from ...probe import dynamo_frames, step_log
from ...steps import evidence
from ...steps.rule import StepRule
from . import event_rows, inferring, layout
from .event_rows import (
    EXCHANGE,
    FLAG,
    FORWARD_BITS,
    KEY_BYTES,
    MOST_ROWS,
    NEVER_ENDED,
    NEW_INPUT,
    ROWS_BITS,
    pack,
)
from .overlapping_calls import ANY_THREAD, OverlappingCalls, are_of_others_too, calls_by_thread
from .repeated_steps import RepeatedSteps
from .step_rows import StepRows
from .step_under_way import TELLING, StepUnderWay

_WORK_NS = 250_000_000  # from one look at what came to the next
_PATIENCE_NS = 1_000_000_000  # how long that waits for a boundary: a step is taken in as a whole
_MOST_HELD = 20_000  # events, until it is decided what a step is
_LEAN_NS = 5_000_000_000  # from then on what few events speak for counts, until it is decided
_EVENTS = {  # of the rule; `inferring` has those of a program that infers
    step_log.FETCH_BEGIN: evidence.FETCH,
    step_log.OPTIMIZER_BEGIN: evidence.OPTIMIZER_BEGIN,
    step_log.OPTIMIZER_END: evidence.OPTIMIZER_END,
    step_log.BACKWARD_BEGIN: evidence.BACKWARD_BEGIN,
    step_log.BACKWARD_END: evidence.BACKWARD_END,
    step_log.GRADIENT_BEGIN: evidence.GRADIENT,
    step_log.EXPLICIT_STEP: evidence.STEP,
}
_BOUNDING = {  # by the kind of what separates steps, the event that does
    "loader": step_log.FETCH_BEGIN,
    "optimizer": step_log.OPTIMIZER_END,
    "backward": step_log.BACKWARD_BEGIN,
    "entry": step_log.ENTRY_BEGIN,
    "forward": step_log.FORWARD_BEGIN,
    "explicit": step_log.EXPLICIT_STEP,
}
_LEARNS = step_log.BACKWARD_BEGIN, step_log.OPTIMIZER_BEGIN, step_log.GRADIENT_BEGIN
_LEARNED = (  # after these the rule may have decided
    step_log.BACKWARD_END,
    step_log.OPTIMIZER_END,
    step_log.GRADIENT_END,
    step_log.EXPLICIT_STEP,
)
_ENDS_STEP = step_log.OPTIMIZER_END, step_log.EXPLICIT_STEP  # other boundaries begin one
_PARTIAL = len(step_log.GRADIENT_CALLS) - 1  # a gradient within the loss: nothing is learned


def _next_place(keys, key, since):
    """Return where a key is again, from place `since` on; 0: nowhere."""
    try:
        return keys.index(key, since)
    except ValueError:
        return 0


class StepLog:
    """The steps of a training, or of the calls of models. `on_row(bytes)`, `on_event(t_ns, ...)`.

    It stands where the probe has its event log, whose codes it takes. `place_of(loader number)`
    says where a loader was made: those of one line are one. `wanted`: what separates steps by the
    user's word.
    """

    def __init__(self, on_row, on_event, place_of, wanted=None):
        self._on_row = on_row
        self._on_event = on_event
        self._place_of = place_of
        self._wanted = wanted
        self.at_boundary = []  # called with the time and the number of steps that have ended
        self.on_found = lambda kind, place, again: None
        self.on_learning = self.on_infers = lambda now: None  # until steps are found
        self.has_compiled = lambda: False  # whether torch.compile did since it was last asked
        self.has_room = lambda: True  # whether a row may come, or is rather filled further
        self.restart(0)

    def restart(self, pid):
        """Begin anew, in a forked child."""
        now = perf_counter_ns()
        self.last_code = 0  # of a backward pass: the hooks of gradients ask for it
        # Events that came and were not taken in.
        self._rows = array("q")
        self._append = self._rows.frombytes
        self._boundary = array("q")  # the row of the last boundary, if nothing came after it
        self.due_ns = now  # when the next look at them is
        self._working = RLock()  # of the thread that takes them in
        self._interrupted_ns = 0  # when the last copy or collection began
        # Steps.
        self._step_rows = StepRows(self._on_row, lambda: self.has_room(), now)
        self._repeats = RepeatedSteps()
        self._under_way = StepUnderWay(
            self._step_rows, self._repeats, self._place_of, self._on_event, now
        )
        self.overlapping = OverlappingCalls()
        # What a step is.
        self._kinds = _EVENTS
        self._thread = None  # that trains; None: not decided, or not any more; or `ANY_THREAD`
        self._held = []  # (thread, code, ident, time, value) until then
        self._held_since_ns = None  # when the first one came; it may be dropped
        self._decision = None  # of the rule, that was told last
        self._bounding = step_log.BACKWARD_END  # the event at which it is best to work
        self._begun = False  # the first step has, with a boundary
        self._follow(StepRule(self._wanted))

    @property
    def step(self):
        """Return how many steps have ended."""
        return self._under_way.number

    @property
    def phase(self):
        """Return the phase that the program is in, as far as was taken in."""
        return self._under_way.phase

    @property
    def phase_ns(self):
        """Return when that phase began."""
        return self._under_way.phase_ns

    @property
    def totals(self):
        """Return the number of steps with hooks, and the seconds of their phases."""
        return self._step_rows.totals

    @property
    def infers(self):
        """Return whether steps are calls of models that nothing is learned from."""
        return self._under_way.infers

    def add(self, code, ident=0, value=0):
        """Take in an event that happens now; return its time (ns)."""
        now = perf_counter_ns()
        # Packed first: between getting `_append` and its call another thread would take the buffer.
        row = pack(get_ident(), code, ident, now, value)
        self._append(row)
        if now > self.due_ns and (code == self._bounding or now > self.due_ns + _PATIENCE_NS):
            # Until it is decided what a step is, each chance to decide it is taken.
            self.due_ns = now if self._thread is None else now + _WORK_NS
            self.work()
        return now

    def add_at(self, code, ident, t_ns, value=0):
        """Take in a copy or a garbage collection, whose end is told when it is over."""
        if code in (step_log.COPY_BEGIN, step_log.GC_BEGIN):
            self._interrupted_ns = t_ns
        else:
            took_ns = t_ns - self._interrupted_ns
            row = pack(get_ident(), code, 0, perf_counter_ns(), took_ns)
            self._append(row)

    def forward(self, model, flags, elements=0, rows=0, is_new=False):
        """Take in that a forward begins, with its largest input if it trains."""
        ident = model << FORWARD_BITS | flags
        if is_new:
            ident |= NEW_INPUT
        self.add(step_log.FORWARD_BEGIN, ident, elements << ROWS_BITS | min(rows, MOST_ROWS))

    def forward_earlier(self, model, flags, began_ns, ended_ns):
        """Take in a forward that has ended, unless it is decided what a step is."""
        self.work()
        if self._thread is None:
            thread = get_ident()
            ident = model << FORWARD_BITS | flags
            self._held.append((thread, step_log.FORWARD_BEGIN, ident, began_ns, 0))
            self._held.append((thread, step_log.FORWARD_END, model, ended_ns, flags))
            self._held.sort(key=itemgetter(3))  # by time

    def exchanged(self, entry_ns, is_final, has_ended=True):
        """Note an exchange between ranks; the step's first, unless it is the gradients' own."""
        self.add(EXCHANGE, is_final | (0 if has_ended else NEVER_ENDED), entry_ns)

    def flag(self, bit):
        """Let the step have a flag in which this moment turns out to lie."""
        row = pack(get_ident(), FLAG, bit, perf_counter_ns(), 0)
        self._append(row)

    def flag_at_boundary(self, bit):
        """Let the step have a flag that has just begun; for functions of `at_boundary`."""
        self._under_way.flags |= bit

    def rested(self, steps, now, at_loader=False):
        """Note that so many steps ended without hooks, which become one row.

        A boundary follows, or a loader begins.
        """
        self.work()
        self._under_way.rested(steps, now)
        self._boundary = array("q")  # other steps came after it
        self.due_ns = 0  # the next boundary counts at once
        if at_loader and self._under_way.kind == "loader":
            self._rule.repeat(0)
            self._under_way.end(now)  # the loader may be that of an evaluation
        else:
            self._rule.learn()  # so that the next fetch is a boundary

    @dynamo_frames.quietly
    def work(self):
        """Take in what came since; another thread may be doing that."""
        if self._rows and self._working.acquire(blocking=False):
            try:
                self._work()
            finally:
                self._working.release()

    def _work(self):
        added = self._rows
        # Another thread may append meanwhile: from here on to the next buffer.
        self._rows = array("q")
        self._append = self._rows.frombytes
        if self._thread not in (None, ANY_THREAD):
            of_thread = event_rows.of_thread(added, self._thread)
            if self.infers and len(of_thread) < len(added) and self._is_called_elsewhere(added):
                self._follow_all_threads()
            else:
                added = of_thread
        if added and self._take_all(added):
            # The program is at a boundary right now, as nothing has happened since. Where several
            # threads call no moment is: there the hooks never rest, and nothing is profiled.
            self._boundary = added[-event_rows.NUMBERS :]
            for function in self.at_boundary:
                function(self._under_way.last_ns, self.step)

    def _is_called_elsewhere(self, rows):
        codes = rows[1 :: event_rows.NUMBERS].tolist()
        threads = rows[:: event_rows.NUMBERS]
        calls = calls_by_thread(zip(threads, map(event_rows.code_of, codes)))  # noqa: B905
        return are_of_others_too(calls, self._thread)

    def _follow_all_threads(self):
        """Let calls of all threads be steps: those of the first one are not all."""
        self._thread = ANY_THREAD
        self._follow(StepRule(self._wanted, self._decision._replace(thread=ANY_THREAD)))
        self._decision = self._rule.decision

    def _take_all(self, added):
        """Take in rows, step by step; return whether the last one is a boundary."""
        # The boundary that was taken in last comes first again: a step is known with both its ends.
        events = event_rows.EventRows(self._boundary + added)
        boundary_at = 0 if self._boundary else None  # that began the step; None: not among these
        at = 0 if boundary_at is None else 1  # the next event
        self._boundary = array("q")
        has_compiled = self.has_compiled()
        # Where rows of all threads are among these no sequence is a step's.
        is_of_one_thread = self._thread not in (None, ANY_THREAD)
        while at < len(events.keys):
            end = None
            ends_step = True
            if boundary_at is not None and not has_compiled:
                end = self._repeat_step(events, boundary_at, at)
            if end is None:
                end, ends_step = self._take_step(events, boundary_at, at, has_compiled)
            boundary_at = end if ends_step and is_of_one_thread else None
            at = end + 1
        return boundary_at == len(events.keys) - 1

    def _repeat_step(self, events, boundary_at, first):
        """Take in a step at once if its events are those of a known one.

        Returns the place of the boundary that ends it; None: it is to be taken in event by event.
        `boundary_at`: where the boundary is that began it, right before the first event.
        """
        if self._rule.is_silent:
            return None  # each event may be the one by which the rule decides anew
        # It ends where the event comes again with which it began. If that does not come the
        # sequence is empty, and as no other.
        end = _next_place(events.keys, events.keys[boundary_at], first)
        sequence = events.key_bytes[KEY_BYTES * boundary_at : KEY_BYTES * end]
        pattern = self._repeats.by_sequence.get(sequence)
        if pattern is None:
            return None
        state, phases, telling, learned = pattern
        if not self._under_way.is_in(state):
            return None
        self._rule.repeat(learned)
        times = events.times[boundary_at : end + 1]
        values = events.values[boundary_at : end + 1]
        self._under_way.repeat(phases, telling, times, values)
        return end

    def _take_step(self, events, boundary_at, first, has_compiled):
        """Take in events one by one, from the first up to and with a boundary.

        Returns the place of the last one, and whether that is a boundary.
        `boundary_at`: where the boundary is that began the step, right before the first; None: it
        is not among these.
        """
        under_way = self._under_way
        self._repeats.is_odd = False
        state = under_way.state()
        learned_before = self._rule.learned
        phases = [under_way.phase]
        last = len(events.keys) - 1
        at = first - 1
        ends_step = False
        while at < last and not ends_step:
            at += 1
            if has_compiled and at == last:
                # Nobody knows in which step: in the longest, and `work` comes soon after that.
                under_way.flags |= layout.RECOMPILED
            ends_step = self._take_event(*events.thread_and_event(at))
            phases.append(under_way.phase)
        is_whole = ends_step and boundary_at is not None
        if is_whole and self._repeats.may_keep() and under_way.is_in(state):
            telling = events.after(boundary_at, at, TELLING)
            learned = self._rule.learned - learned_before
            sequence = events.sequence(boundary_at, at)
            self._repeats.keep(sequence, state, phases, telling, learned)
        return at, ends_step

    def _take_event(self, thread, event):
        """Take in one event; return whether it ends a step."""
        if self._thread is None:
            self._hold(thread, *event)
            return False
        if self._thread == ANY_THREAD:
            return self._take_of_any(thread, *event)
        return thread == self._thread and self._take(thread, *event)

    def _hold(self, thread, code, ident, now, value):
        """Keep an event until it is decided what a step is; it may decide that.

        The older half is dropped where too many are kept: their steps get no row, but the rule has
        counted them. After some seconds what few events speak for counts until it is decided.
        """
        held = self._held
        if len(held) >= _MOST_HELD:
            del held[: _MOST_HELD // 2]
        if self._held_since_ns is None:
            self._held_since_ns = now
        held.append((thread, code, ident, now, value))
        self._give(thread, code, ident, now)
        if code not in _LEARNED:
            return
        self.on_learning(now)
        if self._rule.decision is not None:
            self._begin(self._rule.decision, provisional=False)
            return
        if now - self._held_since_ns <= _LEAN_NS:
            return
        leaning = self._rule.leaning(thread)
        if leaning is not None and leaning.is_sure:
            self._begin(leaning, provisional=True)

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
        return ident >> FORWARD_BITS if code == step_log.FORWARD_BEGIN else ident

    def _follow(self, rule):
        """Let a rule separate steps from here on."""
        self._rule = rule
        self._under_way.rule = rule

    def _begin(self, decision, provisional):
        """Take in all held events of the thread that trains, now that it is known what a step is.

        `provisional`: the first real decision of the rule takes its place.
        """
        held = self._held
        self._held = []
        self._held_since_ns = None
        self._thread = decision.thread
        self._follow(StepRule(self._wanted, decision, provisional))
        self._found(decision, again=self.step > 0)
        first_ns = held[0][3]
        self._under_way.begin_at(first_ns)
        self._under_way.phase_ns = first_ns
        for thread, *event in held:
            self._take_event(thread, event)

    def _found(self, decision, again):
        """Note what separates steps; `again`: something else did before."""
        kind = decision.kind
        place = decision.source
        self._bounding = _BOUNDING[kind]
        if place == evidence.GRADIENTS:  # calls of torch.autograd.grad stand for backward passes
            place = None
            self._bounding = step_log.GRADIENT_BEGIN
        self._decision = decision
        self._under_way.kind = kind
        self._under_way.place = place
        self.overlapping.follow(kind, place)
        self._repeats.forget()
        self.on_found(kind, place, again)

    def _take_of_any(self, thread, code, ident, now, value):
        """Take in an event of a program whose calls come from several threads, as `_take`."""
        self.overlapping.take(thread, code, ident, now)
        # Threads note their events in nearly but not always the order of time.
        return self._take(thread, code, ident, max(now, self._under_way.last_ns), value)

    def _take(self, thread, code, ident, now, value):
        """Take in an event of a thread that is followed; return whether it ends a step."""
        if code in _LEARNS and self.infers:
            self._learn(thread, code, ident, now, value)
            return False
        ends_step = self._give(self._thread, code, ident, now)
        if self._rule.decision is not self._decision:
            self._found(self._rule.decision, again=True)
        under_way = self._under_way
        if ends_step and not self._begun:
            self._begun = True
            if code not in _ENDS_STEP:
                ends_step = False  # it begins the first step
                under_way.begin_at(now)
                under_way.spent_ns = [0] * len(layout.PHASES)
        # The end of an optimizer's step belongs to the step that it ends, any other boundary to the
        # step that it begins.
        is_last = code == step_log.OPTIMIZER_END
        if ends_step and not is_last:
            under_way.end(now)
        under_way.take(code, ident, now, value)
        if ends_step and is_last:
            under_way.end(now)
        return ends_step

    def infer(self, is_last=False):
        """Take what came for calls of models that nothing is learned from; True: that is decided.

        `is_last`: nothing follows.
        """
        with self._working:
            self.work()
            if self._thread is not None or self._rule.leaning() is not None or not self._held:
                return self.infers
            decided = inferring.decided(self._held, self._wanted, self._source, is_last)
            if decided is not None:
                last_ns = self._held[-1][3]
                self.on_infers(last_ns)
                decision, self._kinds = decided
                self._under_way.infers = True
                self._begin(decision, provisional=False)
            return self.infers

    def _learn(self, thread, *event):
        """Begin anew with an event by which something is learned: it was an evaluation."""
        self._thread = None
        self._held = []
        self._held_since_ns = None
        self._kinds = _EVENTS
        self._under_way.infers = False
        self._decision = None
        self._bounding = step_log.BACKWARD_END
        self._begun = False
        self._follow(StepRule(self._wanted))
        self._repeats.forget()
        self._hold(thread, *event)

    def settle(self):
        """Take in what came, and the steps that it speaks for: nothing may follow to decide it."""
        with self._working:
            self.work()
            if self._thread is not None:
                return
            leaning = self._rule.leaning()
            if leaning is None:
                self.infer(is_last=True)
            elif leaning.is_sure:
                self._begin(leaning, provisional=True)

    def end(self):
        """End the last step with its last event, as no boundary follows; write its row."""
        self.settle()
        kind = self._under_way.kind
        has_learned = self._rule.learned > self._rule.bounded_at
        is_begun = self._begun and kind in ("backward", "entry", "forward")
        if (kind == "loader" and has_learned) or is_begun:
            self._under_way.end(self._under_way.last_ns)
        if self._thread is not None:
            self._step_rows.write_rest(self._under_way.began_ns, self.step)
