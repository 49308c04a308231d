"""Switches the hooks off for a block of steps now and then, which shows what they cost."""

from time import perf_counter_ns

_BLOCK_NS = 500_000_000
_FEWEST = 10  # steps of a block
MOST_STEPS = 2_000
_SLOW_STEP_NS = 100_000_000  # no hook costs anything beside such a step
_FIRST_NS, _LAST_NS = 10_000_000_000, 120_000_000_000  # from one block to the next
_SHARE = 0.1  # of the time so far, between these


class Rests:
    """Blocks of steps without hooks: only optimizer steps are counted in them."""

    def __init__(self, watch):
        self._watch = watch
        self.updates = 0
        self.forget()

    def forget(self):
        """Begin anew, in a forked child."""
        self._began_ns = self._due_ns = 0
        self._counted = None  # (steps, updates) at the end of the last block
        self._wanted = self._update_steps = 0

    def boundary(self, now, step):
        """Begin a block if it is due; called between two steps, while the hooks are on."""
        if now < self._due_ns or self._watch.profiling.profiler is not None:
            return
        if not self._due_ns:
            self._began_ns = now
            self._due_ns = now + _FIRST_NS
        if self._counted is None:
            self._counted = step, self.updates, now
            return
        if now < self._due_ns:
            return
        steps = step - self._counted[0]
        updates = self.updates - self._counted[1]
        if steps < _FEWEST or updates <= 0:
            return
        each_ns = (now - self._counted[2]) // steps
        self._counted = step, self.updates, now
        self._due_ns = now + min(_LAST_NS, max(_FIRST_NS, _SHARE * (now - self._began_ns)))
        if each_ns > _SLOW_STEP_NS or updates % steps:
            return  # of several batches that make one update, nobody could count the steps
        block = min(MOST_STEPS, max(_FEWEST, _BLOCK_NS // max(each_ns, 1)))
        self._per_update = steps / updates
        self._wanted = max(1, round(block / self._per_update))
        self._update_steps = 0
        self._watch.on, self._watch.resting = False, True

    def updated(self):
        """Count an optimizer step of a block; called before the hooks take it in."""
        self._update_steps += 1
        if self._update_steps >= self._wanted:
            self.end()

    def end(self, at_loader=False):
        """End the block; the steps in it become one row, at the next boundary or at a loader."""
        watch = self._watch
        log = self._watch.log
        watch.on = True
        watch.resting = False
        steps = round(self._update_steps * self._per_update)
        if steps > 0:
            log.rested(steps, perf_counter_ns(), at_loader)
        self._counted = None
