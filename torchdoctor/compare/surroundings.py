"""What differs around the measurement, and what makes the comparison weaker."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from torchdoctor.compare.step_times import Side, same_batch
from torchdoctor.reports.remarks import FILES
from torchdoctor.schema import Evidence, Interval, Remark, Report, fact
from torchdoctor.schema.comparison import Difference

_LAUNCHERS = ("torch", "accelerate", "deepspeed")  # packages: their modules start a program
OTHER_BATCH = "another-batch-size"  # the fact
_OTHERWISE = 1.2  # times as long: its milliseconds do not add up to the step that is compared


def environment(a: Report, b: Report) -> list[Difference]:
    """Return versions and devices that both name and that differ."""
    old = a.environment
    new = b.environment
    named: list[tuple[str, str | None, str | None]] = [
        ("GPU", _gpus(a), _gpus(b)),
        ("CPU", old.cpu, new.cpu),
        ("usable CPUs", _cpus(a), _cpus(b)),
        ("torch", old.torch, new.torch),
        ("built for", old.built_for, new.built_for),
        ("driver", old.driver, new.driver),
        ("Python", old.python, new.python),
    ]
    return [
        Difference(name=name, a=before, b=after)
        for name, before, after in named
        if before and after and before != after
    ]


def _gpus(report: Report) -> str:
    names = [gpu.name for gpu in report.environment.gpus]
    if names:
        return ", ".join(f"{names.count(name)}x {name}" for name in dict.fromkeys(names))
    # A trace need not name the GPU that it used.
    used = report.trace is not None and report.trace.has_device
    return "" if used else "none"


def _cpus(report: Report) -> str:
    usable = report.environment.usable_cpus
    return f"{usable:g}" if usable else ""


def workload(a: Side, b: Side) -> list[Difference]:
    """Return another command, script or setting; nothing where a trace is one of them."""
    if a.is_trace or b.is_trace:
        return []
    differences = []
    commands = [shlex.join(side.report.workload.command) or "none" for side in (a, b)]
    if commands[0] != commands[1]:
        differences.append(Difference(name="command", a=commands[0], b=commands[1]))
    old, new = (side.report.workload.script_sha256 for side in (a, b))
    if old and new and old != new:
        differences.append(Difference(name="script, SHA-256", a=old[:12], b=new[:12]))
    settings = [
        {setting.name: setting.value for setting in side.report.settings} for side in (a, b)
    ]
    names = {**settings[0], **settings[1]} if all(settings) else {}
    values = [(name, *(setting.get(name, "none") for setting in settings)) for name in names]
    return differences + [
        Difference(name=name, a=before, b=after)
        for name, before, after in values
        if before != after
    ]


def another_workload(a: Side, b: Side, differences: Sequence[Difference]) -> list[Evidence]:
    """Return what makes the two no versions of one workload; `differences` are of `environment`."""
    reasons = []
    runs = not (a.is_trace or b.is_trace)
    old, new = (side.report.workload for side in (a, b))
    names = script_name(old.command), script_name(new.command)
    same_file = old.script_sha256 and old.script_sha256 == new.script_sha256
    if runs and all(names) and names[0] != names[1] and not same_file:
        reasons.append(fact("another-script", a=names[0], b=names[1]))
    reasons += [
        fact("another-condition", name=difference.name, a=difference.a, b=difference.b)
        for difference in differences
    ]
    trainers = [
        side.report.steps.trainers if side.report.steps is not None else 1 for side in (a, b)
    ]
    if trainers[0] != trainers[1] and runs:
        reasons.append(fact("another-number-of-processes", a=trainers[0], b=trainers[1]))
    elif not same_batch(a, b):
        before, after = (side.time.samples_per_step for side in (a, b))
        reasons.append(fact(OTHER_BATCH, a=before, b=after))
    return reasons


def script_name(command: Sequence[str]) -> str:
    """Return the script's file name or the module; the program where there is none."""
    for word, following in zip(command, [*command[1:], ""], strict=False):
        if word == "-m" and following and following.partition(".")[0] not in _LAUNCHERS:
            return following
        if word.endswith(".py"):
            return PurePath(word).name
    return PurePath(command[0]).name if command else ""


def remarks(a: Side, b: Side, interval: Interval | None) -> Iterator[Remark]:
    """Yield everything that weakens the comparison, beside what makes them no one workload."""
    both = (("A", a), ("B", b))
    for label, side in both:
        if side.report.interrupted:
            yield _remark("was-interrupted", side=label)
        yield from (
            replace(remark, of=label) for remark in side.report.remarks if remark.fact in FILES
        )
    versions = a.report.torchdoctor_version, b.report.torchdoctor_version
    if all(versions) and versions[0] != versions[1]:
        yield _remark("other-versions", a=versions[0], b=versions[1])
    runs = not (a.is_trace or b.is_trace)
    if runs:
        yield _remark("other-times")
    if a.is_trace != b.is_trace:
        run, label = (b, "B") if a.is_trace else (a, "A")
        profiled = run.report.trace is not None and run.report.trace.step_times_s
        yield _remark(
            "timed-by-profiled-steps" if profiled else "timed-without-profiler", side=label
        )
    ways = [side.report.baseline.launches_by for side in (a, b)]
    if runs and all(ways) and ways[0] != ways[1]:
        yield _remark("other-kinds-of-step", a=ways[0], b=ways[1])
    elif interval is None:
        yield _remark("no-launches" if runs else "one-recording")
    if (a.report.trace is None) != (b.report.trace is None):
        names = ("B", "A") if a.report.trace is None else ("A", "B")
        ident = "profiled-alone-by-phases" if runs else "profiled-alone"
        yield _remark(ident, profiled=names[0], other=names[1])
    for label, side in both:
        step_s = side.time.step_s
        if not 1 / _OTHERWISE < side.parts_s / step_s < _OTHERWISE:
            yield _remark(
                "parts-of-another-launch", side=label, parts_s=side.parts_s, step_s=step_s
            )
    ranks = [len(side.report.ranks) or 1 for side in (a, b)]
    if ranks[0] != ranks[1]:
        yield _remark("other-ranks", a=ranks[0], b=ranks[1])


def _remark(ident: str, **values: Any) -> Remark:
    return Remark(severity="beware", fact=ident, values=values)
