"""What differs around the measurement, and what makes the comparison weaker."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import PurePath

from torchdoctor.compare.step_times import is_trace, launches_are, parts_s, same_batch
from torchdoctor.words import Environment, Interval, Report
from torchdoctor.words.comparison import ComparedSide, Difference
from torchdoctor.words.figures import seconds

_LAUNCHERS = (  # modules that start the program which the command names further on
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
    "deepspeed.launcher.runner",
)
OTHER_BATCH = "another batch size"
_OTHERWISE = 1.2  # times as long: its milliseconds do not add up to the step that is compared
_MACHINE = ("GPU", "CPU", "usable CPUs")  # another of these is another machine


def environment(a: Report, b: Report) -> list[Difference]:
    """Versions and devices that both name and that differ."""
    differences = []
    for name, old, new in (
        ("GPU", _gpus(a), _gpus(b)),
        ("CPU", a.environment.cpu, b.environment.cpu),
        ("usable CPUs", _cpus(a.environment), _cpus(b.environment)),
        ("torch", a.environment.torch, b.environment.torch),
        ("CUDA", a.environment.cuda, b.environment.cuda),
        ("driver", a.environment.driver, b.environment.driver),
        ("Python", a.environment.python, b.environment.python),
    ):
        if old and new and old != new:
            differences.append(Difference(name=name, a=old, b=new))
    return differences


def _gpus(report: Report) -> str:
    names = [gpu.name for gpu in report.environment.gpus]
    if names:
        return ", ".join(f"{names.count(name)}x {name}" for name in dict.fromkeys(names))
    # A trace need not name the GPU that it used.
    used = report.trace is not None and report.trace.has_device
    return "" if used else "none"


def _cpus(machine: Environment) -> str:
    return f"{machine.usable_cpus:g}" if machine.usable_cpus else ""


def workload(a: Report, b: Report) -> list[Difference]:
    """Another command, script or setting; nothing where a trace is one of them."""
    if is_trace(a) or is_trace(b):
        return []
    differences = []
    if a.workload.command != b.workload.command:
        commands = shlex.join(a.workload.command), shlex.join(b.workload.command)
        differences.append(Difference(name="command", a=commands[0], b=commands[1]))
    old, new = a.workload.script_sha256, b.workload.script_sha256
    if old and new and old != new:
        differences.append(Difference(name="script, SHA-256", a=old[:12], b=new[:12]))
    return differences + _settings(a, b)


def _settings(a: Report, b: Report) -> list[Difference]:
    """Nothing where one of them is older than the list; what only one has was not set there."""
    if not a.settings or not b.settings:
        return []
    old, new = ({setting.name: setting.value for setting in report.settings} for report in (a, b))
    return [
        Difference(name=name, a=old.get(name, "none"), b=new.get(name, "none"))
        for name in dict.fromkeys([*old, *new])
        if old.get(name) != new.get(name)
    ]


def another_workload(
    a: Report,
    b: Report,
    sides: tuple[ComparedSide, ComparedSide],
    differences: Sequence[Difference],
) -> list[str]:
    """Return what makes the two no versions of one workload; empty where nothing is known.

    Args:
        a: the earlier report.
        b: the other.
        sides: for their batches.
        found: of `environment`.
    """
    reasons = []
    if not is_trace(a) and not is_trace(b):
        old, new = script_name(a.workload.command), script_name(b.workload.command)
        digests = a.workload.script_sha256, b.workload.script_sha256
        if old != new and not (digests[0] and digests[0] == digests[1]):
            reasons.append(f"another script ({old} -> {new})")
    reasons += [
        f"another {difference.name} ({difference.a} -> {difference.b})"
        for difference in differences
    ]
    trainers = [report.steps.trainers if report.steps is not None else 1 for report in (a, b)]
    if trainers[0] != trainers[1] and not is_trace(a) and not is_trace(b):
        reasons.append(f"another number of training processes ({trainers[0]} -> {trainers[1]})")
    elif not same_batch(*sides):
        before, after = (side.samples_per_step for side in sides)
        reasons.append(f"{OTHER_BATCH} ({before:.3g} -> {after:.3g} samples a step)")
    return reasons


def script_name(command: Sequence[str]) -> str:
    """Return the script's file name or the module; the program where there is none."""
    for number, word in enumerate(command):
        if word == "-m" and number + 1 < len(command) and command[number + 1] not in _LAUNCHERS:
            return command[number + 1]
        if word.endswith(".py"):
            return PurePath(word).name
    return PurePath(command[0]).name if command else ""


def doubts(
    a: Report,
    b: Report,
    sides: tuple[ComparedSide, ComparedSide],
    interval: Interval | None,
    differences: Sequence[Difference],
) -> list[str]:
    """Return everything that weakens the comparison."""
    sentences = _of_the_reports(a, b)
    machine = [difference.name for difference in differences if difference.name in _MACHINE]
    if machine:
        sentences.append(
            f"Not comparable as versions of a program: another {', '.join(machine)}. What "
            "changed may be the machine's."
        )
    sentences += _about_batches(*sides)
    traces = [side.kind == "trace" for side in sides]
    if any(traces) and not all(traces):
        sentences.append(_mixed(a, b))
    if not any(traces):
        sentences.append(
            "The two ran at different times, on a machine that others may have used: weaker "
            "evidence than `torchdoctor gate`, which measures both in turns."
        )
    if interval is None and not any(traces):
        sentences.append(_no_interval(a, b))
    sentences += _one_profiled(a, b)
    sentences += _observed_otherwise(sides)
    if any(traces):
        sentences.append("A trace is one recording: no interval can be given.")
    if len(a.ranks) != len(b.ranks):
        sentences.append(
            f"{_ranks(a)} against {_ranks(b)}: collectives and steps differ by that alone."
        )
    return sentences


def _of_the_reports(a: Report, b: Report) -> list[str]:
    sentences = [
        f"{label} was interrupted: what it had not measured by then is missing."
        for label, report in (("A", a), ("B", b))
        if report.interrupted
    ]
    versions = a.torchdoctor_version, b.torchdoctor_version
    if all(versions) and versions[0] != versions[1]:
        sentences.append(
            f"They are of different versions of torchdoctor ({versions[0]} and {versions[1]}), "
            "which may measure and find differently."
        )
    return sentences


def _one_profiled(a: Report, b: Report) -> list[str]:
    if (a.trace is None) == (b.trace is None):
        return []
    with_one, without = ("B", "A") if a.trace is None else ("A", "B")
    by = "" if is_trace(a) or is_trace(b) else ", and time is compared by phases"
    return [
        f"{with_one} was profiled and {without} was not: what only a profile shows is no "
        f"change{by}."
    ]


def _observed_otherwise(sides: tuple[ComparedSide, ComparedSide]) -> list[str]:
    """Return a doubt where the observed launch is not like those that are compared."""
    return [
        f"{label}'s parts and findings are of the launch that was observed, whose steps took "
        f"{seconds(parts_s(side))} on average; what is compared took {seconds(side.step_s)}."
        for label, side in zip("AB", sides, strict=True)
        if not 1 / _OTHERWISE < parts_s(side) / side.step_s < _OTHERWISE
    ]


def _no_interval(a: Report, b: Report) -> str:
    ways = launches_are(a), launches_are(b)
    if ways[0] != ways[1] and a.baseline.launches_s and b.baseline.launches_s:
        return (
            f"A's launches are told by their {ways[0]} step and B's by their {ways[1]} step, so "
            "the mean steps are compared, and no interval can be given."
        )
    return "Not both hold launches that can be compared: no interval can be given."


def _ranks(report: Report) -> str:
    return f"{len(report.ranks)} ranks" if report.ranks else "one rank"


def _about_batches(a: ComparedSide, b: ComparedSide) -> list[str]:
    if same_batch(a, b) or not (a.samples_per_step and b.samples_per_step):
        return []
    return ["Their steps hold different numbers of samples: compare the times per sample."]


def _mixed(a: Report, b: Report) -> str:
    run, label = (b, "B") if is_trace(a) else (a, "A")
    unseen = f"What only {label} could see (settings, loaders, sensors) is left out."
    if run.trace is not None and run.trace.step_times_s:
        return (
            f"The other is a trace, so {label}'s step time is that of its profiled steps. {unseen}"
        )
    return (
        f"{label} was timed without the profiler and the other under it, which slows the host "
        f"down. {unseen}"
    )
