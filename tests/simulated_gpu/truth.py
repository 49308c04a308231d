"""What a program on the device really spends, without torchdoctor: written to a file.

With SIMULATED_TRUTH=FILE a program is left alone for a while, observed by the device's own counters
and by the clock around its sleeps, and then ended.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

_WARM_UP_S, _OBSERVED_S = 3.0, 9.0  # some epochs of each


def begin(counts: Callable[[], dict[str, int]], pending_ns: Callable[[int], int]) -> None:
    """Observe this process from its first kernel on."""
    slept: dict[str, float] = defaultdict(float)
    real_sleep, steps = time.sleep, itertools.count()

    def sleep(seconds: float) -> None:
        began = time.perf_counter()
        real_sleep(seconds)
        slept[sys._getframe(1).f_code.co_name] += time.perf_counter() - began

    def snapshot() -> dict[str, Any]:
        # A look at the counter counts as well: once in each snapshot.
        now = {**counts(), "pending_ns": pending_ns(0), "slept": dict(slept), "steps": next(steps)}
        return {**now, "wall_s": time.perf_counter()}

    def observe() -> None:
        while not counts()["kernels"]:
            real_sleep(0.05)
        optimizers: Any = sys.modules["torch.optim.optimizer"]  # torch is imported by now
        optimizers.register_optimizer_step_post_hook(lambda *_: next(steps))
        real_sleep(_WARM_UP_S)
        first = snapshot()
        real_sleep(_OBSERVED_S)
        _write(first, snapshot())
        os._exit(0)

    time.sleep = sleep
    threading.Thread(target=observe, daemon=True).start()


def _write(first: dict[str, Any], last: dict[str, Any]) -> None:
    wall_s = last["wall_s"] - first["wall_s"]
    added = {name: last[name] - first[name] for name in ("busy_ns", "copy_ns", "pending_ns")}
    # A program has one stream: what is queued and not done is of both kinds as what was done.
    queued = added["busy_ns"] + added["copy_ns"]
    done = 1 - added["pending_ns"] / queued if queued else 0.0
    names = {"data_loader": "__getitem__", "other": "<module>"}
    slept = {
        share: last["slept"].get(name, 0.0) - first["slept"].get(name, 0.0)
        for share, name in names.items()
    }
    gpu_s, memcpy_s = (added[name] / 1e9 * done for name in ("busy_ns", "copy_ns"))
    # Beside a device that is busy, a sleep costs nothing.
    exposed = {name: min(slept_s, wall_s - gpu_s - memcpy_s) for name, slept_s in slept.items()}
    shares = {"gpu": gpu_s, "memcpy": memcpy_s, **exposed}
    truth = {
        "shares": {name: seconds / wall_s for name, seconds in shares.items()},
        "steps_per_s": (last["steps"] - first["steps"] - 1) * done / wall_s,
    }
    with open(os.environ["SIMULATED_TRUTH"], "w", encoding="utf-8") as file:  # noqa: PTH123
        json.dump(truth, file)
