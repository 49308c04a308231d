"""Decides online what separates two steps.

A step is one batch of the loader that the training goes through; without one it is one step of the
optimizer that steps least often, or one backward pass; `torchdoctor.step()` overrules all. Where
nothing is learned, it is one forward of the model. A closure's passes count where they happen
within the optimizer's step. What is preferred and was seen is waited for, so that a decision does
not depend on how many events came after it: it holds until what it names falls silent while the
program goes on learning.

The words of this room:

- A boundary is an event that separates two steps, by the decision.
- Something is learned where an outermost backward pass begins, or an optimizer's step outside of
  one; `learned` counts that, and what stands for it: calls of torch.autograd.grad without passes,
  batches of a program that infers. It tells how far a program came, as time does not.
- Evidence is what has been counted of all that could separate steps; a candidate is one of these.
- A leaning is what the evidence speaks for so far, however little that is; it may change. It is
  sure if enough boundaries came to name it.
- A decision is made once, on enough evidence. It holds until what it names falls silent: much is
  learned and no boundary comes. Then evidence is gathered anew, beside it.
- A provisional decision was a leaning: somebody waits to see steps. Evidence is gathered anew from
  its beginning, and the first real decision takes its place.
"""

from collections.abc import Hashable
from typing import NamedTuple

from .evidence import (
    BACKWARD_BEGIN,
    BACKWARD_END,
    BATCH,
    ENTRY,
    FETCH,
    FEWEST,
    FORWARD,
    GRADIENT,
    GRADIENTS,
    OPTIMIZER_BEGIN,
    OPTIMIZER_END,
    STEP,
    Evidence,
)

LEAST_LEARNED = 24  # backward passes and optimizer steps, before anything is decided
# What comes first in a thread while another one is within a pass is a part of that: autograd has a
# thread of its own for a device, where what was checkpointed is computed again.
_PARTS_OF_PASS = BACKWARD_BEGIN, BACKWARD_END, OPTIMIZER_BEGIN, OPTIMIZER_END
_SILENT = 16  # of them without a boundary, at least: something else separates steps by now
_SILENT_STEPS = 8  # and that many of the longest step's


class Decision(NamedTuple):
    """What separates two steps."""

    kind: str  # of `KINDS`
    source: Hashable  # what of that kind: the place of a loader, an optimizer, a model
    thread: int  # that trains
    since: int | None  # the time of the first event that it rests on
    learned: int  # in each step until then: backward passes and optimizer steps
    is_sure: bool  # enough of it was seen to name it
    is_final: bool  # and more of the same changes nothing any more


class StepRule:
    """Takes in the events of a program; `decision` is None until it is decided what a step is.

    `wanted` is the kind that the user named. `decision`: one made before, on the same events,
    which may be `provisional`.
    """

    def __init__(
        self,
        wanted: str | None = None,
        decision: Decision | None = None,
        provisional: bool = False,
    ) -> None:
        self._wanted = wanted
        self._given_up = set[tuple[str, Hashable]]()  # what came and went
        self._provisional = provisional
        self._by_thread: dict[int, Evidence] = {}  # until it is decided
        self._anew: Evidence | None = None  # evidence, once what separated steps fell silent
        self._explicit = 0
        self.learned = 0  # backward passes and optimizer steps of the thread that trains
        self.learned_at_boundary = 0  # `learned`, at the last boundary
        self._learned_before = -1  # and when the loader was fetched last
        self._longest = 1  # what is learned in the longest step
        self._passes_open = 0
        self.has_passes = False  # else calls of torch.autograd.grad stand for backward passes
        self.decision: Decision | None = None
        if decision is not None:
            self._decide(decision)

    def _decide(self, decision: Decision) -> None:
        self.decision = decision
        self._anew = None
        self._longest = decision.learned
        self.learned_at_boundary = self.learned
        if self._provisional:
            self._anew = Evidence(self._given_up)
        self._learned_before = -1

    @property
    def decides_anew(self) -> bool:
        """Return whether it gathers evidence for another decision, from each event that comes.

        The decision is provisional, or what it names fell silent.
        """
        return self._anew is not None

    def add(self, kind: int, source: Hashable = None, thread: int = 0, now: int = 0) -> bool:
        """Take in an event; return whether it separates two steps, by what is decided so far."""
        decision = self.decision
        if decision is None:
            self._gather(kind, source, thread, now)
            return False
        if thread != decision.thread:
            return False
        if decision.kind == "forward" and kind in (BACKWARD_BEGIN, OPTIMIZER_BEGIN, GRADIENT):
            self.decision = None  # it was an evaluation before the training
            self._gather(kind, source, thread, now)
            return False
        boundary = self._separates(decision, kind, source)
        if kind == STEP and decision.kind != "explicit" and self._wanted is None:
            self._explicit += 1
            if self._explicit >= FEWEST:
                self._provisional = False
                self._decide(Decision("explicit", None, thread, now, self._longest, True, True))
                return True
        if boundary:
            self._bound()
        elif self._anew is None and self._misses_boundaries():
            self._anew = Evidence({*self._given_up, (decision.kind, decision.source)})
        if self._anew is not None and self._anew.add(kind, source, now):
            self._conclude(self._anew, thread)
        return boundary

    @property
    def silence(self) -> int:
        """Return how much is learned without a boundary before what is decided counts as silent."""
        return max(_SILENT, _SILENT_STEPS * self._longest)

    def _misses_boundaries(self) -> bool:
        return self.learned - self.learned_at_boundary > self.silence

    def _bound(self) -> None:
        self._longest = max(self._longest, self.learned - self.learned_at_boundary)
        self.learned_at_boundary = self.learned
        if not self._provisional:
            self._anew = None

    def _gather(self, kind: int, source: Hashable, thread: int, now: int) -> None:
        evidence = self._by_thread.get(thread)
        if evidence is None:
            if kind in _PARTS_OF_PASS and any(e.is_in_pass for e in self._by_thread.values()):
                return
            evidence = self._by_thread[thread] = Evidence(self._given_up)
        learns = evidence.add(kind, source, now)
        if learns or (kind == FORWARD and not evidence.learned):
            self._conclude(evidence, thread)

    def _conclude(self, evidence: Evidence, thread: int) -> None:
        """Decide, if the evidence allows it."""
        if self._wanted is not None:
            first = evidence.of_kind(self._wanted)
        else:
            first = next(iter(evidence.candidates()), None)
        if first is None:
            return
        kind, source, boundaries, fewest = first
        is_early = evidence.learned < LEAST_LEARNED and kind not in ("explicit", "forward")
        if boundaries < fewest or is_early:
            return
        each = -(-evidence.learned // boundaries)
        before = self.decision
        decision = Decision(kind, source, thread, evidence.since, max(each, 1), True, True)
        self._provisional = False
        if before is None:
            self._by_thread = {}
            self._decide(decision)
        elif (kind, source) == before[:2]:
            self._anew = None
        else:
            # What came and went is no unit of the whole: in turns it would only do so again.
            if self._misses_boundaries():
                self._given_up.add(before[:2])
            self._decide(decision)

    def _separates(self, decided: Decision, kind: int, source: Hashable) -> bool:
        """Return whether an event is a boundary of the decided kind; count what is learned."""
        if kind == FETCH:
            self._passes_open = 0
            if decided.kind != "loader" or source != decided.source:
                return False
            is_new = self._learned_before != self.learned
            self._learned_before = self.learned
            return is_new
        if kind == OPTIMIZER_BEGIN:
            self.learned += not self._passes_open
        elif kind == OPTIMIZER_END:
            return decided.kind == "optimizer" and source == decided.source
        elif kind == BACKWARD_BEGIN:
            self._passes_open += 1
            self.has_passes = True
            if self._passes_open > 1:
                return False
            self.learned += 1
            return decided.kind == "backward" and decided.source is None
        elif kind == BACKWARD_END:
            self._passes_open = max(self._passes_open - 1, 0)
        elif kind == GRADIENT and not self.has_passes:
            self.learned += 1
            return decided.source == GRADIENTS
        elif kind == BATCH:
            self.learned += 1
        elif kind == FORWARD:
            return decided.kind == "forward" and decided.source in (None, source)
        elif kind == ENTRY:
            return decided.kind == "entry" and decided.source in (None, source)
        return kind == STEP and decided.kind == "explicit"

    def leaning(self, thread: int | None = None) -> Decision | None:
        """Return the `Decision` that the events so far speak for, of few of them too; or None.

        It may change with further events, as `decision` does not.
        """
        if self.decision is not None:
            return self.decision
        for its_thread, evidence in self._by_thread.items():
            if thread in (None, its_thread):
                leaning = self._leaning(its_thread, evidence)
                if leaning is not None:
                    return leaning
        return None

    def _leaning(self, thread: int, evidence: Evidence) -> Decision | None:
        if self._wanted is None:
            candidates = evidence.candidates()
        else:
            candidate = evidence.of_kind(self._wanted)
            candidates = [candidate] if candidate is not None else []
        enough = [candidate for candidate in candidates if candidate[2] >= FEWEST]
        for kind, source, _, _ in enough or candidates:
            return Decision(kind, source, thread, evidence.since, 1, bool(enough), False)
        return None

    def learned_unseen(self) -> None:
        """Count something learned of which no event came."""
        self.learned += 1

    def add_known_step(self, learned: int) -> None:
        """Take in a whole step as one before, up to and with the boundary that ends it.

        `learned`: how much `learned` grew in that one.
        """
        self.learned += learned
        self._learned_before = self.learned
        self._bound()
