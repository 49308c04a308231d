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
    _begin_steps                        once it is: those that were kept are taken in
    _take_all                           from then on: from boundary to boundary
        _take_known_steps               those with the same events as an earlier one, at once
        _take_step                      any other one, event by event
            _take                       an event
                _take_boundary          where one step ends and the next one begins
    StepUnderWay                        gives each event's time to a phase, and takes its value
    StepRows                            gets each step that has ended, and writes rows

Events of one thread count: that which trains, or calls the models; others' are dropped. Where
several threads call them all count (`overlapping_calls`), and a training that moves to another
thread is followed there (`learning_elsewhere`). The rule may decide anew at any event
(`_found`); `steps.rule` explains its words, as a leaning or a provisional decision. What was taken
for inference is begun again with the first event by which something is learned (`_begin_anew`).
"""

from _thread import RLock, get_ident
from array import array
from time import perf_counter_ns

from ...probe import dynamo_frames, step_log
from ...steps import evidence
from ...steps.rule import StepRule
from . import event_rows, inferring, layout
from .event_rows import (
    EXCHANGE,
    FLAG,
    FORWARD_BITS,
    MOST_ELEMENTS,
    MOST_ROWS,
    NEVER_ENDED,
    NEW_INPUT,
    ROWS_BITS,
    pack,
)
from .held_events import HeldEvents
from .interruptions import Interruptions
from .learning_elsewhere import LearningElsewhere, is_partial, learns
from .overlapping_calls import ANY_THREAD, CallsElsewhere, OverlappingCalls
from .repeated_steps import RepeatedSteps
from .step_rows import StepRows
from .step_under_way import TELLING, StepUnderWay

_WORK_NS = 250_000_000  # from one look at what came to the next
_PATIENCE_NS = 1_000_000_000  # how long that waits for a boundary: a step is taken in as a whole
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
_MAY_DECIDE = (  # after these the rule may have decided
    step_log.BACKWARD_END,
    step_log.OPTIMIZER_END,
    step_log.GRADIENT_END,
    step_log.EXPLICIT_STEP,
)
# The first boundary ends the first step if it is one of these, else it begins it.
_ENDS_STEP = step_log.OPTIMIZER_END, step_log.EXPLICIT_STEP
_ELSEWHERE = 4  # times the rule's silence: threads that train at once do not take turns evenly


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
        self.at_boundary = []  # called in the thread that trains: time, steps that have ended
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
        # The row of a boundary that was the last one taken in: it is put before those that come, as
        # a known step is told by its events from the boundary that begins it.
        self._boundary = array("q")
        self.due_ns = now  # when the next look at them is
        self._working = RLock()  # of the thread that takes them in
        self._interruptions = Interruptions()
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
        self._held = HeldEvents()  # until then
        self._calls_elsewhere = CallsElsewhere()
        self._learning_elsewhere = LearningElsewhere()
        self._decision = None  # of the rule, that was told last
        self._bounding = step_log.BACKWARD_END  # the event at which it is best to work
        self._has_bounds = False  # the first boundary came
        self._use_rule(StepRule(self._wanted))

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
        thread = get_ident()
        took_ns = self._interruptions.take(thread, code, t_ns)
        if took_ns is not None:
            row = pack(thread, code, 0, perf_counter_ns(), took_ns)
            self._append(row)

    def forward(self, model, flags, elements=0, rows=0, is_new=False):
        """Take in that a forward begins, with its largest input if it trains."""
        ident = model << FORWARD_BITS | flags
        if is_new:
            ident |= NEW_INPUT
        if elements > MOST_ELEMENTS:
            elements = MOST_ELEMENTS
        if rows > MOST_ROWS:
            rows = MOST_ROWS
        self.add(step_log.FORWARD_BEGIN, ident, elements << ROWS_BITS | rows)

    def forward_earlier(self, model, flags, began_ns, ended_ns):
        """Take in a forward that has ended, unless it is decided what a step is."""
        with self._working:
            self.work()
            if self._thread is None:
                thread = get_ident()
                ident = model << FORWARD_BITS | flags
                begin = thread, step_log.FORWARD_BEGIN, ident, began_ns, 0
                end = thread, step_log.FORWARD_END, model, ended_ns, flags
                self._held.add_earlier([begin, end])

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

        The step under way is the first of them. A boundary follows, or a loader begins.
        """
        with self._working:
            self.work()
            self._under_way.rested(steps, now)
            self._boundary = array("q")  # other steps came after it
            self.due_ns = 0  # the next boundary counts at once
            if at_loader and self._under_way.kind == "loader":
                self._rule.add_known_step(0)
                self._under_way.end(now)  # the loader may be that of an evaluation
            else:
                self._rule.learned_unseen()  # so that the next fetch is a boundary

    @dynamo_frames.quietly
    def work(self):
        """Take in what came since; another thread may be doing that."""
        if self._rows and self._working.acquire(blocking=False):
            try:
                self._work()
            finally:
                self._working.release()

    def _work(self):
        came = self._rows
        # Another thread may append meanwhile: from here on to the next buffer.
        self._rows = array("q")
        self._append = self._rows.frombytes
        if self._thread not in (None, ANY_THREAD):
            came = self._of_followed(came)
        if came:
            self._take_rows(came)
        if self._learning_elsewhere.has_begun:
            self._follow_learner(0 if self.infers else _ELSEWHERE * self._rule.silence)

    def _of_followed(self, came):
        """Return the events of the thread that is followed; of all, if from here on all are."""
        places = event_rows.places_of_others(came, self._thread)
        if self.infers and self._is_called_elsewhere(came, len(places) > 0):
            self._follow_all_threads()
            return came
        elsewhere = self._learning_elsewhere
        if elsewhere.has_begun or elsewhere.begins(came, places):
            elsewhere.take(self._thread, came, self._under_way.is_in_backward)
        return event_rows.without(came, places)

    def _take_rows(self, came):
        rows = self._boundary + came
        if self._take_all(event_rows.EventRows(rows), len(self._boundary) > 0):
            self._boundary = rows[-event_rows.NUMBERS :]
            self._tell_boundary()
        else:
            self._boundary = array("q")

    def _follow_learner(self, most):
        """Begin anew with another thread, if one has learned more than that since this one did."""
        learner = self._learning_elsewhere.learner(most)
        if learner is None:
            return
        self._end_last_step()
        rows = self._learning_elsewhere.rows_since(learner, self._under_way.began_ns)
        self._forget_steps()
        self._under_way.forget_open()
        self._boundary = array("q")
        if rows:
            self._take_rows(rows)

    def _tell_boundary(self):
        """Call the functions of `at_boundary`, unless another thread takes the events in.

        The thread of the steps is between two of them right now, as nothing has happened in it
        since. No other thread knows such a moment, nor is there one where the calls of all count.
        """
        if get_ident() == self._thread:
            for function in self.at_boundary:
                function(self._under_way.last_ns, self.step)

    def _is_called_elsewhere(self, rows, has_others):
        if not has_others and not self._calls_elsewhere.has_begun:
            return False
        codes = map(event_rows.code_of, rows[1 :: event_rows.NUMBERS])
        return self._calls_elsewhere.are_many(self._thread, rows[:: event_rows.NUMBERS], codes)

    def _follow_all_threads(self):
        """Let calls of all threads be steps: those of the first one are not all."""
        self._thread = ANY_THREAD
        self._use_rule(StepRule(self._wanted, self._decision._replace(thread=ANY_THREAD)))
        self._decision = self._rule.decision

    def _take_all(self, events, is_after_boundary):
        """Take in events, step by step; return whether the last one is a boundary.

        `is_after_boundary`: the first of them is the boundary that began the step under way. It was
        taken in as the last one before: here it only tells how that step's sequence begins.
        """
        has_compiled = self.has_compiled()
        at = 1 if is_after_boundary else 0  # the next event
        # Where events of all threads are among these no sequence is a step's.
        is_of_one_thread = self._thread not in (None, ANY_THREAD)
        is_after_boundary = is_after_boundary and is_of_one_thread
        while at < events.count:
            if is_after_boundary and not has_compiled:
                at = 1 + self._take_known_steps(events, at - 1)
                if at == events.count:
                    break
            at, ends_step = self._take_step(events, at, is_after_boundary, has_compiled)
            is_after_boundary = ends_step and is_of_one_thread
        return is_after_boundary

    def _take_known_steps(self, events, boundary_at):
        """Take in each step at once, as long as they are as earlier ones.

        `boundary_at`: the place of the boundary that began the step under way, and was taken in.
        Returns that of the last boundary, from which on the events are those of no known step.
        """
        rule = self._rule
        under_way = self._under_way
        state = under_way.state()  # each of these steps ends as it began
        repeats = self._repeats
        while not rule.decides_anew:  # then it needs each event
            sequence, end = events.sequence_from(boundary_at, boundary_at)
            pattern = repeats.by_sequence.get(sequence)
            if pattern is None and repeats.most_within:
                pattern, end = repeats.of_several(events, boundary_at, end)
            if pattern is None:
                break
            state_of_pattern, phases, telling, learned = pattern
            if state_of_pattern != state:
                break
            state = state_of_pattern  # equal, and compared faster the next time
            rule.add_known_step(learned)
            times = events.times[boundary_at : end + 1]
            under_way.repeat(phases, telling, times, events.values[boundary_at : end + 1])
            boundary_at = end
        return boundary_at

    def _take_step(self, events, first, is_after_boundary, has_compiled):
        """Take in events one by one, from the first up to and with a boundary.

        Returns the place after the last one, and whether that is a boundary. `is_after_boundary`:
        right before the first one is the boundary that began the step, so that this may be kept for
        others that are like it.
        """
        under_way = self._under_way
        self._repeats.is_odd = False
        state = under_way.state()
        learned_before = self._rule.learned
        phases = [under_way.phase]
        last = events.count - 1
        at = first
        ends_step = False
        while at <= last and not ends_step:
            if has_compiled and at == last:
                # Nobody knows in which step: in the longest, and `work` comes soon after that.
                under_way.flags |= layout.RECOMPILED
            ends_step = self._take(*events.event(at))
            phases.append(under_way.phase)
            at += 1
        is_whole = ends_step and is_after_boundary
        if is_whole and self._repeats.may_keep() and under_way.state() == state:
            begin = first - 1
            end = at - 1
            self._repeats.keep(
                events.sequence(begin, end),
                state,
                phases,
                events.after(begin, end, TELLING),
                self._rule.learned - learned_before,
            )
        return at, ends_step

    def _take(self, thread, code, ident, now, value):
        """Take in an event; return whether it ends a step."""
        if thread != self._thread:
            return self._take_of_other(thread, code, ident, now, value)
        if self._under_way.infers and learns(code, ident):
            self._begin_anew(thread, code, ident, now, value)
            return False
        is_boundary = self._tell_rule(thread, code, ident, now)
        if self._rule.decision is not self._decision:
            self._found(self._rule.decision, again=True)
        if not is_boundary:
            self._under_way.take(code, ident, now, value)
            return False
        ends_step = self._has_bounds or code in _ENDS_STEP
        self._has_bounds = True
        if ends_step:
            self._take_boundary(code, ident, now, value)
        else:  # the first boundary, which begins the first step
            self._under_way.begin_at(now)
            self._under_way.take(code, ident, now, value)
        return ends_step

    def _take_of_other(self, thread, code, ident, now, value):
        """Take in an event that is not of the one thread that counts, as `_take`."""
        if self._thread is None:
            self._hold(thread, code, ident, now, value)
            return False
        if self._thread != ANY_THREAD:
            return False
        if self._under_way.infers and learns(code, ident):
            self._begin_anew(thread, code, ident, now, value)
            return False
        self.overlapping.take(thread, code, ident, now)
        # Threads note their events in nearly but not always the order of time.
        return self._take(ANY_THREAD, code, ident, max(now, self._under_way.last_ns), value)

    def _take_boundary(self, code, ident, now, value):
        """End the step under way at a boundary.

        That is the last event of this step, or the first one of the next step.
        """
        if code == step_log.OPTIMIZER_END:
            self._under_way.take(code, ident, now, value)
            self._under_way.end(now)
        else:
            self._under_way.end(now)
            self._under_way.take(code, ident, now, value)

    def _hold(self, thread, code, ident, now, value):
        """Keep an event until it is decided what a step is; it may decide that.

        After some seconds what few events speak for counts until it is decided.
        """
        self._held.add((thread, code, ident, now, value))
        self._tell_rule(thread, code, ident, now)
        if code not in _MAY_DECIDE or is_partial(code, ident):
            return
        self.on_learning(now)
        if self._rule.decision is not None:
            self._begin_steps(self._rule.decision, provisional=False)
            return
        if now - self._held.since_ns() <= _LEAN_NS:
            return
        leaning = self._rule.leaning(thread)
        if leaning is not None and leaning.is_sure:
            self._begin_steps(leaning, provisional=True)

    def _tell_rule(self, thread, code, ident, now):
        """Give the rule an event; return whether it separates two steps."""
        kind = self._kinds.get(code)
        if kind is None or is_partial(code, ident):
            return False
        return self._rule.add(kind, self._source(code, ident), thread, now)

    def _source(self, code, ident):
        """Return what the rule takes for the source of an event."""
        if code == step_log.FETCH_BEGIN:
            return self._place_of(ident)
        return ident >> FORWARD_BITS if code == step_log.FORWARD_BEGIN else ident

    def _use_rule(self, rule):
        """Let a rule separate steps from here on."""
        self._rule = rule
        self._under_way.rule = rule

    def _begin_steps(self, decision, provisional):
        """Take in all held events of the thread that trains, now that it is known what a step is.

        `provisional`: it was a leaning, and the first real decision of the rule takes its place.
        """
        held = self._held.take()
        self._thread = decision.thread
        self._calls_elsewhere = CallsElsewhere()
        self._use_rule(StepRule(self._wanted, decision, provisional))
        self._found(decision, again=self.step > 0)
        first_ns = held[0][3]
        self._under_way.begin_at(first_ns)
        self._under_way.phase_ns = first_ns
        for event in held:
            self._take(*event)

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

    def infer(self, is_last=False):
        """Take what came for calls of models that nothing is learned from; True: that is decided.

        `is_last`: nothing follows.
        """
        with self._working:
            self.work()
            if self._thread is not None or not self._held.events:
                return self.infers
            if self._rule.leaning() is not None:
                return self.infers  # something is learned
            decided = inferring.decided(self._held.events, self._wanted, self._source, is_last)
            if decided is not None:
                last_ns = self._held.events[-1][3]
                self.on_infers(last_ns)
                decision, self._kinds = decided
                self._under_way.infers = True
                self._begin_steps(decision, provisional=False)
            return self.infers

    def _begin_anew(self, thread, *event):
        """Begin anew with an event by which something is learned: it was an evaluation."""
        self._forget_steps()
        self._hold(thread, *event)

    def _forget_steps(self):
        """Let it be open what a step is, and which thread's events count."""
        self._thread = None
        self._under_way.flags &= layout.PROFILED  # the profiler goes on
        self._held.clear()
        self._kinds = _EVENTS
        self._under_way.infers = False
        self._decision = None
        self._bounding = step_log.BACKWARD_END
        self._has_bounds = False
        self._use_rule(StepRule(self._wanted))
        self._repeats.forget()
        self._learning_elsewhere = LearningElsewhere()

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
                self._begin_steps(leaning, provisional=True)

    def end(self):
        """End the last step, as no boundary follows; write its row."""
        with self._working:
            self.work()
            if self._learning_elsewhere.has_begun:
                self._follow_learner(0 if self.infers else self._rule.silence)
        self.settle()
        self._end_last_step()
        self._step_rows.write_rest(self._under_way.began_ns, self.step)

    def _end_last_step(self):
        """End the step under way with its last event, if one has begun."""
        kind = self._under_way.kind
        has_learned = self._rule.learned > self._rule.learned_at_boundary
        is_begun = self._has_bounds and kind in ("backward", "entry", "forward")
        if (kind == "loader" and has_learned) or is_begun:
            self._under_way.end(self._under_way.last_ns)
