"""Two launches side by side: one stands still while the other runs its block of iterations.

Only one of the two runs at any time, but for their start. Turns follow each other within seconds,
so what else happens on the machine meets both; the start is paid once for many blocks.
"""

import contextlib
import json
import math
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import psutil

from torchdoctor.launch.launch import Poll, RunningLaunch, no_interrupts
from torchdoctor.machine import processes
from torchdoctor.schema import Block, LaunchTiming

_LOOK_S = 0.004
_BLOCKED_FACTOR, _BLOCKED_S = 20.0, 30.0  # a turn that takes this long comes no more

Start = Callable[[Poll], LaunchTiming]


class _Player:
    """One launch in a thread of its own, let go and held up from outside."""

    def __init__(self, start: Start, over: threading.Event) -> None:
        self._start = start
        self._over = over
        self.running: RunningLaunch | None = None
        self.result: LaunchTiming | None = None
        self.error: BaseException | None = None
        self.turns = 0  # given to it so far
        self.thread = threading.Thread(target=self._run, name="turns", daemon=True)

    def _run(self) -> None:
        try:
            self.result = self._start(self._poll)
        except BaseException as error:
            self.error = error

    def _poll(self, running: RunningLaunch) -> bool:
        self.running = running
        return self._over.is_set()

    def waits(self) -> bool:
        """Return True if it stands at the boundary before its next turn."""
        if self.running is None:
            return False
        try:
            message = json.loads((self.running.channel / "turn.json").read_bytes())
        except (OSError, ValueError):
            return False
        return bool(message["turn"] == self.turns)

    def go(self) -> None:
        """Give it the next turn."""
        assert self.running is not None
        # First, for its workers would prepare batches until it sees it.
        (self.running.channel / f"go-{self.turns}").touch()
        self.signal(signal.SIGCONT)
        self.turns += 1

    def hold(self) -> None:
        """Stop its processes, its loader's workers too: they would go on preparing batches."""
        # Twice: a process may have been started while the first ones were told.
        for _ in range(2):
            self.signal(signal.SIGSTOP)

    def signal(self, number: int) -> None:
        """Tell every process of the program."""
        if self.running is None:
            return
        started = self.running.started
        # PID 1 of the namespace only waits; whoever ends the launch needs it awake.
        root = started.init_pid if started.init_pid is not None else started.popen.pid
        for process in processes.tree(root):
            if process.pid != started.init_pid:
                with contextlib.suppress(psutil.Error, OSError):
                    os.kill(process.pid, number)


def abba(blocks: int, chance: random.Random) -> list[int]:
    """Return whose turn it is, 0 or 1: `blocks` turns of each, in ABBA or BAAB order by lot."""
    order: list[int] = []
    for _ in range(blocks // 2):
        order += chance.choice([[0, 1, 1, 0], [1, 0, 0, 1]])
    return order


def neighbours(first: LaunchTiming, second: LaunchTiming) -> list[tuple[Block, Block]]:
    """Pair turn n of one launch with turn n of the other: in ABBA order they follow each other."""
    by_turn = {block.round: block for block in second.blocks}
    return [(block, by_turn[block.round]) for block in first.blocks if block.round in by_turn]


def take_turns(
    starts: tuple[Start, Start],
    order: Sequence[int],
    turn_s: float,
    until_s: float,
    end_by_s: float = math.inf,
) -> tuple[LaunchTiming, LaunchTiming]:
    """Run two launches side by side, in threads; a launch whose turn did not end is `late`.

    `order`: whose block is next, 0 or 1, in fours (ABBA or BAAB). A turn that takes much longer
    than `turn_s` is not waited for; after `until_s`, once four turns were, no more four begin. At
    `end_by_s` both are ended, whosever turn it is.
    """
    over = threading.Event()
    late = None
    players = _Player(starts[0], over), _Player(starts[1], over)
    try:
        for player in players:
            player.thread.start()
        late = _play(players, order, turn_s, until_s, end_by_s)
    finally:
        over.set()
        with no_interrupts():
            for player in players:
                player.signal(signal.SIGCONT)
                player.thread.join()
    for player in players:
        if player.error is not None:
            raise player.error
    first, second = (player.result for player in players)
    assert first is not None and second is not None
    timings = [first, second]
    if late is not None:
        timings[late] = replace(timings[late], late=True)
        if timings[1 - late].ended == "timed-out":  # it stood still until its time was up too
            timings[1 - late] = replace(timings[1 - late], stopped=True)
    return timings[0], timings[1]


def _play(
    players: tuple[_Player, _Player],
    order: Sequence[int],
    turn_s: float,
    until_s: float,
    end_by_s: float,
) -> int | None:
    """Play all turns, as far as they go; return whose turn it was that did not end."""
    held: set[int] = set()
    while len(held) < 2:
        for number, player in enumerate(players):
            if number not in held and player.waits():
                player.hold()
                held.add(number)
        alive = all(player.thread.is_alive() for player in players)
        if not alive or time.monotonic() > end_by_s:
            return None
        time.sleep(_LOOK_S)
    # Each warms up alone: what is tuned by trying (cuDNN, torch.compile) is tuned undisturbed.
    for number, side in enumerate([0, 1, *order]):
        played = number - 2
        if played >= 4 and played % 4 == 0 and time.monotonic() > until_s:
            return None
        player = players[side]
        player.go()
        # The first turn of each is its warm-up, which may compile.
        patience_s = _BLOCKED_S + _BLOCKED_FACTOR * turn_s if number > 1 else float("inf")
        given_up = time.monotonic() + patience_s
        while not player.waits():
            if time.monotonic() > end_by_s:
                return None
            if time.monotonic() > given_up:
                return side
            ended = [player.result for player in players if not player.thread.is_alive()]
            if ended:  # the time of the player that stood still may be up too
                timed_out = any(result and result.ended == "timed-out" for result in ended)
                return side if timed_out else None
            time.sleep(_LOOK_S)
        player.hold()
    return None
