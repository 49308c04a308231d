"""A switching launch: the untouched program and fixes in turns, in blocks of iterations.

A round is baseline, the arms in random order, baseline; with one arm ABBA or BAAB. What comes right
after a switch is discarded, and the device is waited for at both ends of a block.
"""

import random
import time

from .. import step_log
from ..reasons import raised, reason
from .second_loader import ReadyBatches, ready_in

BASELINE = 0  # the number of the untouched program; arms count from 1


class Switching:
    """Decides which arm runs now, and when the next one does.

    The plan's "switch": `arms` (lists of fixes), `rounds`, `block_steps`, `discard_steps` (at
    least 1), `block_most_s` (an arm whose block takes longer is left out from then on), `most_s`
    (no further round begins after it), `seed` (of the order); by arm `settle_s` (the least time
    discarded after it was switched on, and off) and `arm_steps` (in place of `block_steps`).
    """

    def __init__(self, session):
        self._session = session
        wanted = session.plan["switch"]
        self._rounds = int(wanted["rounds"])
        self._steps = int(wanted["block_steps"])
        self._discard = max(int(wanted["discard_steps"]), 1)
        self._block_most_s = wanted.get("block_most_s")
        self._most_s = wanted.get("most_s")
        # A generator of our own: the program's random numbers must stay what they are.
        self._order = random.Random(wanted.get("seed") or 0)
        self._flush = session.guarded(session.log.flush)
        self._settle_s = [0.0, *(wanted.get("settle_s") or [0.0] * len(wanted["arms"]))]
        of_arms = wanted.get("arm_steps") or [self._steps] * len(wanted["arms"])
        self._steps_of = [self._steps, *of_arms]
        self._settled_at_s = 0.0
        self._left_out = set()
        self._paused = set()  # arms of which a block was cut short for one long step
        self._longest_s = self._step_began_s = 0.0  # of this block
        self._own = None  # what the program's own workers made while an arm answered its fetches
        self._slots = []  # arms of this round that are still to come
        self._round = -1
        self._now = BASELINE
        self._count = 0  # iterations since the switch, or since the block began
        self._in_block = False
        self._began_s = self._block_began_s = None

    def boundary(self, number):
        """Note that an iteration begins; return True once no block is to come, and all is off."""
        log = self._session.log
        if self._began_s is None:
            self._began_s = time.perf_counter()
            over = self._is_over()
            log.add(step_log.BOUNDARY, 0, number)
            return over
        self._count += 1
        self._session.tell("iteration")
        if self._in_block:
            return self._in_the_block(number)
        if not all(program.usable for program in self._programs_on()):
            log.add(step_log.BOUNDARY, 0, number)
            return self._is_over()
        if self._is_settled():
            self._session.synchronise()
            log.add(step_log.BLOCK_BEGIN, self._now, self._round)
            self._in_block = True
            self._count = 0
            self._block_began_s = self._step_began_s = time.perf_counter()
            self._longest_s = 0.0
        log.add(step_log.BOUNDARY, 0, number)
        return False

    def _in_the_block(self, number):
        session = self._session
        over = self._is_block_over()
        if over:
            session.synchronise()
        session.log.add(step_log.BOUNDARY, 0, number)
        if not over:
            return False
        session.log.add(step_log.BLOCK_END, self._now, self._round)
        self._in_block = False
        session.device_rests()
        return self._is_over()

    def _programs_on(self):
        return self._session.arms[self._now - 1] if self._now != BASELINE else ()

    def _is_settled(self):
        # All of them: workers that fill their queues disturb whoever is on.
        settled = [program.is_settled() for program in self._session.all_programs()]
        # Those that the program's own workers made while batches came from elsewhere.
        ready = None if self._own is None else ready_in(self._own_iterator())
        if ready is None or self._own.are_used_up(ready[0]):
            self._own = None
        enough = self._count >= self._discard and time.perf_counter() >= self._settled_at_s
        return all([enough, *settled, self._own is None])

    def _is_over(self):
        """Switch to what comes next; whether nothing does."""
        if self._next_block():
            return False
        self._close(self._session.all_programs())
        return True

    def _is_block_over(self):
        steps = self._steps_of[self._now]
        if self._count >= steps:
            return True
        if self._block_most_s is None or self._now == BASELINE:
            return False
        now = time.perf_counter()
        took, self._step_began_s = now - self._step_began_s, now
        self._longest_s = max(self._longest_s, took)
        spent = now - self._block_began_s
        most_s = self._block_most_s * steps / self._steps
        if spent < most_s:
            return False
        # An evaluation or a checkpoint that fell into its block says nothing of the arm, once.
        rest_s = spent - self._longest_s
        one_pause = self._count > 1 and rest_s < most_s / 2 * (self._count - 1) / steps
        if one_pause and self._now not in self._paused:
            self._paused.add(self._now)
        else:
            self._left_out.add(self._now)
        return True

    def _next_block(self):
        """Switch to what comes next; False where nothing does."""
        while True:
            if not self._slots and not self._begin_round():
                self._switch_to(BASELINE)
                return False
            arm = self._slots.pop(0)
            if arm in self._left_out:
                continue
            if not self._switch_to(arm):
                return False
            if self._now == arm:
                self._count = 0
                return True

    def _begin_round(self):
        self._round += 1
        alive = [n for n in range(1, len(self._session.arms) + 1) if n not in self._left_out]
        spent = time.perf_counter() - self._began_s
        late = self._round > 0 and self._most_s is not None and spent > self._most_s
        if self._round >= self._rounds or not alive or late:
            return False
        if len(alive) == 1:
            first, second = self._order.sample([BASELINE, alive[0]], 2)
            self._slots = [first, second, second, first]
        else:
            self._slots = [BASELINE, *self._order.sample(alive, len(alive)), BASELINE]
        return True

    def _switch_to(self, arm):
        """Switch; an arm that refuses or fails is left out. False: the last one stayed on."""
        if arm == self._now:
            return True
        session = self._session
        programs = self._session.arms
        settle_s = max(self._settle_s[self._now], self._settle_s[arm])
        self._settled_at_s = time.perf_counter() + settle_s
        answered = any("fetch" in program.functions for program in self._programs_on())
        ready = ready_in(self._own_iterator()) if answered else None
        self._own = None if ready is None else ReadyBatches(ready[1])
        modules = session.models.alive()
        session.models.leave_contexts()
        if self._now != BASELINE:
            before = programs[self._now - 1]
            if not all(program.usable for program in before):
                self._left_out.add(self._now)  # it refused or failed within its block
            if not self._off(before, modules):
                return False
            if self._now in self._left_out:
                self._close(before)
        if arm != BASELINE and not self._on(programs[arm - 1], modules):
            self._left_out.add(arm)
            if not self._off(programs[arm - 1], modules):
                return False
            self._close(programs[arm - 1])
            arm = BASELINE
        self._now = arm
        session.log.add(step_log.SWITCH, arm)
        self._flush()  # who was on must be known of a program that is killed
        return True

    def _own_iterator(self):
        loaders = self._session.loaders
        return None if loaders.last is None else loaders.known[loaders.last].iterator()

    def _close(self, programs):
        for program in programs:
            program.close()

    def _on(self, programs, modules):
        self._session.programs = programs
        for program in programs:
            if program.usable:
                program.switch_on(modules)
        return all(program.usable for program in programs)

    def _off(self, programs, modules):
        whole = True
        for program in reversed(programs):
            if not program.on:
                continue
            try:
                program.switch_off(modules)
            except Exception as error:
                whole = False
                program.state = "failed"
                program.why = reason("not-switched-off", why=raised(error))
        self._session.programs = []
        return whole
