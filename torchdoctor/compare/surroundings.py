"""What differs around the measurement, and what makes the comparison weaker."""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from torchdoctor.compare.step_times import Side, same_batch
from torchdoctor.reports.remarks import FILES
from torchdoctor.schema import Interval, Report
from torchdoctor.schema.comparison import Difference
from torchdoctor.schema.figures import counted, seconds
from torchdoctor.schema.units import several

_LAUNCHERS = ("torch", "accelerate", "deepspeed")  # packages: their modules start a program
OTHER_BATCH = "another batch size"
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
    return [Difference(name=name, a=x, b=y) for name, x, y in named if x and y and x != y]


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
    settings = [{x.name: x.value for x in side.report.settings} for side in (a, b)]
    names = {**settings[0], **settings[1]} if all(settings) else {}
    values = [(name, *(x.get(name, "none") for x in settings)) for name in names]
    return differences + [Difference(name=name, a=x, b=y) for name, x, y in values if x != y]


def another_workload(a: Side, b: Side, differences: Sequence[Difference]) -> list[str]:
    """Return what makes the two no versions of one workload; `differences` are of `environment`."""
    reasons = []
    runs = not (a.is_trace or b.is_trace)
    old, new = (side.report.workload for side in (a, b))
    names = script_name(old.command), script_name(new.command)
    same_file = old.script_sha256 and old.script_sha256 == new.script_sha256
    if runs and all(names) and names[0] != names[1] and not same_file:
        reasons.append(f"another script ({names[0]} -> {names[1]})")
    reasons += [f"another {x.name} ({x.a} -> {x.b})" for x in differences]
    trainers = [x.report.steps.trainers if x.report.steps is not None else 1 for x in (a, b)]
    if trainers[0] != trainers[1] and runs:
        reasons.append(f"another number of processes ({trainers[0]} -> {trainers[1]})")
    elif not same_batch(a, b):
        before, after = (side.time.samples_per_step for side in (a, b))
        reasons.append(f"{OTHER_BATCH} ({before:.3g} -> {after:.3g} samples a {a.unit})")
    return reasons


def script_name(command: Sequence[str]) -> str:
    """Return the script's file name or the module; the program where there is none."""
    for word, following in zip(command, [*command[1:], ""], strict=False):
        if word == "-m" and following and following.partition(".")[0] not in _LAUNCHERS:
            return following
        if word.endswith(".py"):
            return PurePath(word).name
    return PurePath(command[0]).name if command else ""


def doubts(a: Side, b: Side, interval: Interval | None) -> Iterator[str]:
    """Yield everything that weakens the comparison, beside what makes them no one workload."""
    both = (("A", a), ("B", b))
    for label, side in both:
        if side.report.interrupted:
            yield f"{label} was interrupted: the measurements after that are missing."
        yield from (f"{label}: {x.sentence}" for x in side.report.remarks if x.fact in FILES)
    versions = a.report.torchdoctor_version, b.report.torchdoctor_version
    if all(versions) and versions[0] != versions[1]:
        yield (
            f"A and B were made by different versions of torchdoctor ({versions[0]} and "
            f"{versions[1]}), which may measure and diagnose differently."
        )
    runs = not (a.is_trace or b.is_trace)
    if runs:
        yield (
            "The two ran at different times, perhaps beside other programs. `torchdoctor gate` "
            "gives stronger evidence, because it measures both in turns."
        )
    if a.is_trace != b.is_trace:
        run, label = (b, "B") if a.is_trace else (a, "A")
        timed = f"{label} was timed without the profiler, which slows the host of the other down."
        if run.report.trace is not None and run.report.trace.step_times_s:
            units = several(run.unit)
            timed = f"The other is a trace, so {label}'s time is that of its profiled {units}."
        yield f"{timed} Facts that only {label} has (settings, loaders, sensors) are left out."
    ways = [side.report.baseline.launches_by for side in (a, b)]
    if runs and all(ways) and ways[0] != ways[1]:
        yield (
            f"A's launches give their {ways[0]} {a.unit} and B's their {ways[1]}, so the means "
            "are compared, and no interval can be given."
        )
    elif interval is None:
        why = "A or B holds no launches to compare" if runs else "a trace is one recording"
        yield f"No interval can be given, because {why}."
    if (a.report.trace is None) != (b.report.trace is None):
        profiled, other = ("B", "A") if a.report.trace is None else ("A", "B")
        by = ", and time is compared by phases" if runs else ""
        yield (
            f"{profiled} was profiled and {other} was not: what only a profile shows does not "
            f"count as a change{by}."
        )
    for label, side in both:
        if not 1 / _OTHERWISE < side.parts_s / side.time.step_s < _OTHERWISE:
            yield (
                f"{label}'s parts and findings are of the observed launch, whose "
                f"{several(side.unit)} took {seconds(side.parts_s)} on average; the compared ones "
                f"took {seconds(side.time.step_s)}."
            )
    ranks = [len(side.report.ranks) or 1 for side in (a, b)]
    if ranks[0] != ranks[1]:
        yield (
            f"{counted(ranks[0], 'rank')} against {counted(ranks[1], 'rank')}: that alone changes "
            "collectives and steps."
        )
