"""Blocks of iterations that take turns with another process: the other version of the program.

At a boundary the process says that it stands still (`turn.json` in its channel) and waits for
`go-<number>`; whoever gives the turn stops all of its processes meanwhile.
"""

import os
import signal
import sys
import time

from .. import step_log
from ..measure import facts

_LOOK_S = 0.002


class Turns:
    """When this process stands still, and which of its iterations are a block.

    The plan's "turns": `warmup_steps` (of the first turn, which measures nothing), `block_steps`,
    `discard_steps` (after each wait: caches and thread pools are the other's), `block_least_s` (a
    block has these steps again and again until then), `block_most_s` (a block that takes longer is
    cut short, but for its first two iterations).
    """

    def __init__(self, session):
        self._session = session
        wanted = session.plan["turns"]
        self._warmup = int(wanted["warmup_steps"])
        self._steps = int(wanted["block_steps"])
        self._discard = max(int(wanted["discard_steps"]), 1)
        self._block_least_s = float(wanted.get("block_least_s", 0.0))
        self._block_most_s = float(wanted["block_most_s"])
        self._turn = -1  # 0: the warm-up
        self._count = 0  # iterations since the turn, or since its block began
        self._in_block = False
        self._block_began_s = None

    def boundary(self, number):
        """Note that an iteration begins; return once it may."""
        log = self._session.log
        self._count += 1
        if self._turn < 1:
            if self._turn < 0 or self._count >= self._warmup:
                self._wait_for_turn()
        elif self._in_block:
            if self._is_block_over():
                self._session.synchronise()
                log.add(step_log.BOUNDARY, 0, number)
                log.add(step_log.BLOCK_END, 0, self._turn)
                self._in_block = False
                # The iteration that this boundary began is the first after the wait.
                self._wait_for_turn()
                return
        elif self._count >= self._discard:
            self._session.synchronise()
            log.add(step_log.BLOCK_BEGIN, 0, self._turn)
            self._in_block = True
            self._count = 0
            self._block_began_s = time.perf_counter()
        log.add(step_log.BOUNDARY, 0, number)

    def _is_block_over(self):
        spent_s = time.perf_counter() - self._block_began_s
        if self._count % self._steps == 0 and spent_s >= self._block_least_s:
            return True
        return self._count > 1 and spent_s > self._block_most_s

    def _wait_for_turn(self):
        session = self._session
        session.synchronise()
        _stop_children()
        began_s = time.perf_counter()
        session.device_rests()
        session.flush()
        self._turn += 1
        turn = {"turn": self._turn, "pid": session.pid}
        facts.write_json(os.path.join(session.channel, "turn.json"), turn)
        while not os.path.exists(f"{session.channel}/go-{self._turn}"):
            time.sleep(_LOOK_S)
        if session.first_step_s is None:
            session.stood_still_s += time.perf_counter() - began_s
        self._count = 0


def _stop_children():
    """Stop loader workers at once: they would fill their queues. The next turn lets them go on."""
    for child in list(getattr(sys.modules.get("multiprocessing.process"), "_children", ())):
        try:
            if child._popen.returncode is None:  # else its number may be somebody else's
                os.kill(child.pid, signal.SIGSTOP)
        except (AttributeError, OSError, TypeError, ValueError):
            continue
