"""`torchdoctor gate`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from torchdoctor.cli import arguments
from torchdoctor.cli.arguments import parse_duration
from torchdoctor.cli.outputs import print_text, say, whoever_reads
from torchdoctor.launch.run_folder import check_free
from torchdoctor.schema.errors import (
    Inconclusive,
    NoStepFound,
    ProgramFailed,
    TimedOut,
    TorchdoctorError,
    UsageError,
)

if TYPE_CHECKING:
    from torchdoctor.gate.settings import GateSettings
    from torchdoctor.schema import Workload
    from torchdoctor.schema.gate import GateReport

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
_PatchOf = Annotated[
    Path | None,
    typer.Option(help="The report whose patch was applied: memory may grow as it told."),
]
_Fixes = Annotated[
    list[str] | None,
    typer.Option(help="With --patch-of: the fixes whose edits were applied, if not the patch."),
]


def gate(
    command: arguments.Command,
    against: _Against = None,
    baseline: _Baseline = None,
    tolerance: _Tolerance = None,
    patch_of: _PatchOf = None,
    fixes: _Fixes = None,
    budget: arguments.Budget = "10m",
    timeout: arguments.Timeout = "10m",
    output: arguments.OutputFolder = None,
    steps: arguments.Steps = None,
    warmup: arguments.Warmup = None,
    step_on: arguments.StepOn = None,
    seed: arguments.Seed = 0,
    python: arguments.Python = None,
    no_sandbox: arguments.NoSandbox = False,
    network: arguments.Network = "on",
    in_turns: arguments.InTurns = False,
    on: arguments.On = None,
    nodes: arguments.Nodes = 0,
    gpus_per_pair: arguments.Gpus = 0,
    quiet: arguments.Quiet = False,
    details: arguments.Details = False,
    format: arguments.Format = "text",
) -> None:
    """Measure both, apply the rule, exit with its answer."""
    with _failures_annotated():
        from torchdoctor.gate.settings import GateSettings, program_folder, tolerances
        from torchdoctor.launch.workload import workload_of

        format = arguments.checked_format(format)
        command, later = _options_behind(command)
        against = later.get("--against", against)
        baseline = Path(later["--baseline"]) if "--baseline" in later else baseline
        if against is not None and baseline is not None:
            raise UsageError("Give only one of --against and --baseline.")
        if against is None and baseline is None:
            raise UsageError(_without_reference(command))
        workload = workload_of(command, python=python)
        if baseline is not None and on is not None:
            raise UsageError("--on measures pairs, and a gate against a report has none.")
        settings = GateSettings(
            tolerances=tolerances(program_folder(workload), tolerance),
            told_memory=_told_memory(patch_of, fixes),
            **arguments.place(budget, on, nodes, gpus_per_pair, output),
            timeout_s=parse_duration(timeout),
            steps=steps,
            warmup=warmup,
            step_on=step_on,
            seed=seed,
            **arguments.isolation(no_sandbox, network),
            side_by_side=not in_turns,
        )
        if settings.output is not None:
            check_free(settings.output)  # before a result without figures is written there
        report = _measured(workload, against, baseline, settings, quiet)
        _hand_out(report, details, format)
    _end(report)


def _told_memory(patch_of: Path | None, fixes: list[str] | None) -> float | None:
    """Return the growth of memory that the applied patch's report told, if it is named."""
    from torchdoctor.gate.applied_patch import told_memory
    from torchdoctor.schema.record_files import read_report

    applied = arguments.named_fixes(fixes)
    if patch_of is not None:
        return told_memory(read_report(patch_of), applied)
    if applied:
        raise UsageError("--fixes says what of a report was applied: name it with --patch-of.")
    return None


def _end(report: GateReport) -> NoReturn:
    """End with the code of the verdict."""
    if report.interrupted:
        raise SystemExit(130)  # of typer's own it would mean that nothing was said of it
    raise typer.Exit(_EXIT[report.verdict])


def _measured(
    workload: Workload,
    against: str | None,
    baseline: Path | None,
    settings: GateSettings,
    quiet: bool,
) -> GateReport:
    """Return the result; where nothing was measured, write the reason into --output first."""
    from torchdoctor.gate.gate_run import GateRun
    from torchdoctor.gate.session import undecided
    from torchdoctor.gate.stored import gate_against_report, read_stored
    from torchdoctor.reports.progress import Progress
    from torchdoctor.schema import fact

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
        from torchdoctor.reports.wording import in_one_line

        broken = not isinstance(error, Inconclusive)
        why = fact("because", reason=in_one_line(error))
        result = undecided(workload, named, why, broken=broken)
        _write_files(result, settings.output)
        raise
    except KeyboardInterrupt:
        why = fact("interrupted-before-pairs")
        _write_files(undecided(workload, named, why, interrupted=True), settings.output)
        raise


def _without_reference(command: list[str]) -> str:
    """Return what to do where neither reference was given, or the program got it."""
    for option in ("--against", "--baseline"):
        if any(word.partition("=")[0] == option for word in command):
            return (
                f"{option} was passed to the program: write torchdoctor's own options before the "
                f"script; only {option} may also come last."
            )
    return "Say what to compare with: --against REF, or --baseline report.json."


def _options_behind(command: list[str]) -> tuple[list[str], dict[str, str]]:
    """Take `--against REF` at the very end of the line for ours; elsewhere it is the script's."""
    options: dict[str, str] = {}
    while len(command) > 2 and command[-2] in ("--against", "--baseline"):
        options[command[-2]] = command[-1]
        command = command[:-2]
    return command, options


def _hand_out(report: GateReport, details: bool, format: str) -> None:
    """Write the files, then print: who no longer reads what is printed changes no exit code."""
    from torchdoctor.reports import gate as formats
    from torchdoctor.reports import markdown, terminal
    from torchdoctor.reports.summary import of_gate, with_json
    from torchdoctor.schema.record_files import encode

    _write_files(report, Path(report.run_folder) if report.run_folder else None)
    with whoever_reads():
        if format == "text":
            terminal.show(formats.document(report), details)
        elif format == "markdown":
            print_text(markdown.render(formats.document(report), details))
        else:
            print_text(encode(replace(report, summary=with_json(of_gate(report)))).decode())
        if _on_github():
            typer.echo(formats.annotation(report), err=format != "text")


def _write_files(report: GateReport, folder: Path | None) -> None:
    """Write each form of the result into its folder, and GitHub's step summary, if that goes."""
    from torchdoctor.reports import gate as formats
    from torchdoctor.reports import markdown
    from torchdoctor.reports.document import PAGE_NAME
    from torchdoctor.reports.side_by_side import gate_page
    from torchdoctor.reports.summary import with_summary
    from torchdoctor.schema.record_files import encode

    document = formats.document(report)
    if folder is not None:
        _write_forms(
            folder,
            {
                "gate.json": encode(with_summary(report)).decode(),
                "gate.md": markdown.render(document),
                "gate.xml": formats.junit(report),
                PAGE_NAME: gate_page(report),
            },
        )
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if not _on_github() or not summary:
        return
    try:
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write(markdown.render(document, details=False))
    except OSError as error:
        reason = error.strerror or error
        say(f"torchdoctor: the step summary {summary} was not written ({reason}).")


def _write_forms(folder: Path, forms: Mapping[str, str]) -> None:
    from torchdoctor.schema.record_files import write_text

    for name, text in forms.items():
        try:
            write_text(text, folder / name, through_link=False)
        except UsageError as error:
            say(f"torchdoctor: {error}")


@contextlib.contextmanager
def _failures_annotated() -> Iterator[None]:
    """Under GitHub Actions an error ends in an annotation too, or only the log knows the reason."""
    try:
        yield
    except TorchdoctorError as error:
        if _on_github():
            from torchdoctor.reports.gate import workflow_command
            from torchdoctor.reports.wording import in_one_line

            kind = "warning" if isinstance(error, Inconclusive) else "error"
            with whoever_reads():
                typer.echo(workflow_command(kind, in_one_line(error)))
        raise


def _on_github() -> bool:
    return os.environ.get("GITHUB_ACTIONS") == "true"
