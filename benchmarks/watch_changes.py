"""Does `watch` name the cause of a slower training within a minute, and is it silent otherwise?

    python benchmarks/watch_changes.py --steady 10 --hours 20     # false alerts
    python benchmarks/watch_changes.py --planted 5                # changes in simulated logs
    python benchmarks/watch_changes.py --real                     # changes in real programs

Prints one table each, in the form that docs/watch.md shows.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
import watch_simulation as simulation


def steady(runs: int, hours: float) -> None:
    print("| steps of | runs | hours each | runs with an alert | alerts |")
    print("| --- | --- | --- | --- | --- |")
    for step_s in (2.0, 0.2, 0.05):
        alerts = []
        for seed in range(runs):
            with tempfile.TemporaryDirectory() as folder:
                run = simulation.steady(hours, step_s, seed)
                alerts.append(
                    [a.sentence for _, a in simulation.replayed(Path(folder), [run], 300.0)]
                )
            print(f"{seed}: {len(alerts[-1])}", file=sys.stderr, flush=True)
        disturbed = [x for x in alerts if x]
        told = "; ".join(sentence for x in disturbed for sentence in x) or "none"
        print(f"| {step_s} s | {runs} | {hours:g} | {len(disturbed)} | {told} |", flush=True)


def planted(seeds: int) -> None:
    print("| planted | named rightly | seconds after its start | as told |")
    print("| --- | --- | --- | --- |")
    for name, cause, plant in simulation.PLANTS:
        runs = [simulation.planted(plant, 20, seed=seed) for seed in range(seeds)]
        _row(name, cause, None, [([run], at_s) for run, at_s in runs])
    ranks = []
    for seed in range(seeds):
        run = simulation.steady(10 / 60, seed=seed)
        step = int(np.searchsorted(run.ends_s, 300))
        ranks.append((simulation.ranks_of(run, 2, step), float(run.ends_s[step])))
    _row("one slow rank", "forward", 2, ranks)


def _row(name: str, cause: str, rank: int | None, cases: list) -> None:
    right, late, told = 0, [], ""
    for runs, at_s in cases:
        with tempfile.TemporaryDirectory() as folder:
            for now_s, alert in simulation.replayed(Path(folder), runs):
                if now_s < at_s or alert.cause != cause or alert.rank != rank:
                    told = told or f"WRONG: {alert.sentence}"
                    continue
                right, told = right + 1, alert.sentence
                late.append(now_s - at_s)
                break
    seconds = f"{min(late):.0f} to {max(late):.0f}" if late else "-"
    print(f"| {name} | {right} of {len(cases)} | {seconds} | {told} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steady", type=int, default=0)
    parser.add_argument("--hours", type=float, default=20.0)
    parser.add_argument("--planted", type=int, default=0)
    options = parser.parse_args()
    if options.planted:
        planted(options.planted)
    if options.steady:
        steady(options.steady, options.hours)


if __name__ == "__main__":
    main()
