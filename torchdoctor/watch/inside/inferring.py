"""Programs that infer: known by calls of models from which nothing is learned for some seconds.

What a step of one is decides the rule of `steps`, on the events that `run` gives it too.
"""

from time import perf_counter_ns

from ...probe import step_log
from ...steps import evidence
from ...steps.rule import StepRule
from .overlapping_calls import ANY_THREAD, calling_thread

_FEWEST_CALLS = 5
_LEAST_NS = 3_000_000_000
_LEAST_BY_OPTIMIZER_NS = 30_000_000_000  # where one waits to step, as in a training to come
_MANY_CALLS = 4_000  # before that time: the log holds no more until it is decided
BY_CALL = {  # events of the rule where a batch that a model gets counts as learned
    step_log.FETCH_BEGIN: evidence.FETCH,
    step_log.FORWARD_END: evidence.BATCH,
    step_log.ENTRY_BEGIN: evidence.ENTRY,
    step_log.ENTRY_END: evidence.ENTRY_END,
    step_log.EXPLICIT_STEP: evidence.STEP,
}
BY_MODEL = {step_log.FORWARD_BEGIN: evidence.FORWARD}  # where its call is all that happens


class Inference:
    """Whether a process infers: what the probe's hooks ask of a session.

    `looks`: it may turn out to, or does; what is set to False stays so.
    """

    wanted = False
    looks = True

    def __init__(self, watch):
        self._watch = watch
        self.restart()

    def restart(self):
        """Begin anew, in a forked child."""
        self.on = False
        self._calls = 0
        self._due_calls = _MANY_CALLS
        self._due_ns = None

    def trains(self):
        """Note that something is learned: an evaluation was no inference."""
        self.on = self.looks = False

    def begins(self, ident):
        """Do nothing: the log has the call."""

    def ended(self, output):
        """Note that the outermost call of a root module has ended."""
        if not self.on:
            self.called()

    def called(self):
        """Look once in a while whether the calls so far tell that the program infers."""
        if self.on or not self.looks:
            return
        now = perf_counter_ns()
        if self._due_ns is None:
            self._began_ns = now
            self._due_ns = now + _LEAST_NS
        self._calls += 1
        if self._calls < (_FEWEST_CALLS if now >= self._due_ns else self._due_calls):
            return
        # Each look takes in all that was held.
        self._due_ns = 2 * now - self._began_ns
        self._due_calls = 2 * self._calls
        # A program that loads a checkpoint may make an optimizer for it, and never step it.
        is_long = now - self._began_ns >= _LEAST_BY_OPTIMIZER_NS
        if is_long or not len(self._watch.optimizers_made):
            self.on = self._watch.log.infer()


def decided(held, wanted, source_of, is_last):
    """Return the `Decision` that held events speak for, and the events that tell it; or None.

    `source_of(code, ident)`: of the rule. `is_last`: nothing follows, so that further calls of an
    entry point are waited for no more. Calls that several threads make are of `ANY_THREAD`; of
    those that one makes, but for a few, only its own count.
    """
    thread = calling_thread((thread, code) for thread, code, _, _, _ in held)
    if thread == ANY_THREAD:
        held = [(ANY_THREAD, *event) for _, *event in held]
    elif thread is not None:
        held = [event for event in held if event[0] == thread]
    by_call = _leaning(held, wanted, source_of, BY_CALL)
    if by_call is not None and by_call.is_sure:
        return by_call, BY_CALL
    by_model = _leaning(held, wanted, source_of, BY_MODEL)
    if by_model is None or not by_model.is_sure or (_awaits_calls(held) and not is_last):
        return None
    return by_model, BY_MODEL


def _leaning(held, wanted, source_of, kinds):
    rule = StepRule(wanted)
    for thread, code, ident, now, _ in held:
        if code in kinds:
            rule.add(kinds[code], source_of(code, ident), thread, now)
    return rule.leaning()


def _awaits_calls(held):
    """Return whether an entry point was called too few times to know if that goes on."""
    codes = [code for _, code, _, _, _ in held]
    calls = codes.count(step_log.ENTRY_BEGIN)
    if not 0 < calls < evidence.FEWEST:
        return False
    fetch = step_log.FETCH_BEGIN
    return fetch not in codes or codes.index(fetch) > codes.index(step_log.ENTRY_BEGIN)
