"""`torchdoctor gate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchdoctor.cli import arguments
from torchdoctor.cli.arguments import parse_duration
from torchdoctor.cli.gate_results import (
    Files,
    failures_annotated,
    first_sentences,
    hand_out,
    write_files,
)
from torchdoctor.cli.written_files import check_written
from torchdoctor.words.errors import Inconclusive, NoStepFound, ProgramFailed, TimedOut, UsageError

if TYPE_CHECKING:
    from torchdoctor.gate.settings import GateSettings
    from torchdoctor.words import Workload
    from torchdoctor.words.gate import GateReport

HELP = (
    "Fail when training got slower: two versions measured side by side on this machine.\n\n"
    "torchdoctor gate --against main train.py \\[its arguments]\n\n"
    "torchdoctor gate --baseline report.json train.py\n\n"
    "Exit codes: 0 not slower, 1 slower beyond the tolerance, 6 not decided or not comparable."
)
_EXIT = {"not slower": 0, "slower": 1, "inconclusive": 6}


_Against = Annotated[str | None, typer.Option(help="The commit, branch or tag to compare with.")]
_Baseline = Annotated[Path | None, typer.Option(help="A stored report.json of torchdoctor run.")]
_Tolerance = Annotated[
    str | None, typer.Option(help="Accepted growth, e.g. step_time=5%,peak_memory=10%.")
]
_Markdown = Annotated[Path | None, typer.Option(help="Also write it as Markdown here.")]
_JUnit = Annotated[Path | None, typer.Option(help="Also write it as JUnit XML here.")]


def gate(
    command: arguments.Command,
    against: _Against = None,
    baseline: _Baseline = None,
    tolerance: _Tolerance = None,
    budget: arguments.Budget = "10m",
    timeout: arguments.Timeout = "10m",
    json: arguments.Json = None,
    markdown: _Markdown = None,
    junit: _JUnit = None,
    output: arguments.Output = None,
    steps: arguments.Steps = None,
    warmup: arguments.Warmup = None,
    step_on: arguments.StepOn = None,
    seed: arguments.Seed = 0,
    python: arguments.Python = None,
    no_sandbox: arguments.NoSandbox = False,
    in_turns: arguments.InTurns = False,
    quiet: arguments.Quiet = False,
    details: arguments.Details = False,
) -> None:
    """Measure both, apply the rule, exit with its answer."""
    with failures_annotated():
        from torchdoctor.gate.settings import GateSettings, program_folder, tolerances
        from torchdoctor.launch.workload import workload_of

        command, later = _options_behind(command)
        against = later.get("--against", against)
        baseline = Path(later["--baseline"]) if "--baseline" in later else baseline
        if against is not None and baseline is not None:
            raise UsageError("Give only one of --against and --baseline.")
        if against is None and baseline is None:
            raise UsageError(_without_reference(command))
        check_written(
            {"gate result": json, "Markdown": markdown, "JUnit file": junit},
            read=[] if baseline is None else [baseline],
        )
        workload = workload_of(command, python=python)
        settings = GateSettings(
            tolerances=tolerances(program_folder(workload), tolerance),
            budget_s=parse_duration(budget),
            timeout_s=parse_duration(timeout),
            output=output,
            steps=steps,
            warmup=warmup,
            step_on=step_on,
            seed=seed,
            sandbox=not no_sandbox,
            side_by_side=not in_turns,
        )
        files = Files(json=json, markdown=markdown, junit=junit)
        report = _measured(workload, against, baseline, settings, files, quiet)
        hand_out(report, files, details)
    raise typer.Exit(130 if report.interrupted else _EXIT[report.verdict])


def _measured(
    workload: Workload,
    against: str | None,
    baseline: Path | None,
    settings: GateSettings,
    files: Files,
    quiet: bool,
) -> GateReport:
    """Return the result; where nothing was measured, write the reason into the files first."""
    from torchdoctor.gate.gate_run import GateRun
    from torchdoctor.gate.session import undecided
    from torchdoctor.gate.stored import gate_against_report, read_stored
    from torchdoctor.reports.progress import Progress

    stored = read_stored(baseline) if baseline is not None else None
    named = str(baseline) if against is None else against
    try:
        with Progress(quiet=quiet) as progress:
            if stored is not None:
                return gate_against_report(
                    workload, stored, str(baseline), settings, progress.update
                )
            assert against is not None
            return GateRun(workload, against, settings, progress.update).run()
    except (Inconclusive, ProgramFailed, NoStepFound, TimedOut) as error:
        broken = not isinstance(error, Inconclusive)
        write_files(undecided(workload, named, first_sentences(error), broken=broken), files)
        raise
    except KeyboardInterrupt:
        why = "It was interrupted before anything was compared."
        write_files(undecided(workload, named, why, interrupted=True), files)
        raise


def _without_reference(command: list[str]) -> str:
    """Return what to do where neither reference was given, or the program got it."""
    for option in ("--against", "--baseline"):
        if any(word.partition("=")[0] == option for word in command):
            return (
                f"{option} went to the program: torchdoctor's own options stand before the script, "
                f"and {option} alone also at the very end."
            )
    return "Say what to compare with: --against REF, or --baseline report.json."


def _options_behind(command: list[str]) -> tuple[list[str], dict[str, str]]:
    """`train.py --against REF`: our two references at the very end of the line are ours.

    Only there, so that a script's own options of these names reach it: put them before the script
    (or another word after them) to keep them apart.
    """
    options: dict[str, str] = {}
    while len(command) > 2 and command[-2] in ("--against", "--baseline"):
        options[command[-2]] = command[-1]
        command = command[:-2]
    return command, options
