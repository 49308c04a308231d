"""`torchdoctor report`, `patch` and `env`: what runs have left, and what the machine is."""

import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from torchdoctor.cli.arguments import (
    Details,
    ExitCode,
    FileFormat,
    OutputFile,
    ReportFormat,
    format_of,
    named_fixes,
)
from torchdoctor.cli.outputs import (
    answer_to,
    check_written,
    kind_of,
    leave_with_code,
    print_filled,
    print_json,
    print_text,
    say,
)
from torchdoctor.launch.run_folder import RUNS
from torchdoctor.schema import RecommendedFix, Recording, Report, set_of
from torchdoctor.schema.errors import UsageError
from torchdoctor.schema.figures import clean, visible
from torchdoctor.schema.summary import NextCommand, Summary

PATCH_HELP = (
    "Print the recommended edits of your source as one unified diff, or apply them.\n\n"
    "torchdoctor patch --apply\n\n"
    "torchdoctor patch | git apply"
)
_TAKE_BACK = "To take it back: the same command with --undo in place of --apply."
_WATCH = "watch"  # in the folder of a watched run
_File = Annotated[
    Path | None,
    typer.Argument(help="A report.json, or a run's folder (default: the newest run here)."),
]
_Fixes = Annotated[
    list[str] | None,
    typer.Option(
        help="Print the edit of this fix alone, recommended or only offered. For one diff of "
        "several fixes, repeat the option or write commas.",
        metavar="ID",
    ),
]
_Open = Annotated[bool, typer.Option("--open", help="Open the report's page in a browser.")]
_List = Annotated[bool, typer.Option("--list", help="List the runs of this folder.")]
_Status = Annotated[bool, typer.Option("--status", help="Where a run stands that may still go on.")]
_Apply = Annotated[bool, typer.Option("--apply", help="Change the files, and say what changed.")]
_Undo = Annotated[bool, typer.Option("--undo", help="Take back what --apply changed, exactly.")]
_FORCE = (
    "Apply it to files with uncommitted changes too, or changed since the run, and though the run "
    "rejected the patch."
)
_Force = Annotated[bool, typer.Option("--force", help=_FORCE)]


def report_file(named: Path | None) -> Path:
    """Return the report that was named or is newest here; raise UsageError for a watched run."""
    if named is not None and (run := _watched(named)) is not None:
        todo = f"torchdoctor report {run} tells the command that tries fixes on its program"
        raise UsageError(f"No fix was tried in the watched run {run}: {todo}.")
    return _newest_first()[0] if named is None else named


def _newest_first() -> list[Path]:
    """Return the reports of the runs below this folder; raise UsageError where there is none."""
    run_reports = [path for path in Path(RUNS).glob("*/report.json") if path.is_file()]  # no pipe
    reports = [path for path in run_reports if not (path.parent / _WATCH).is_dir()]
    if not reports:
        todo = "name a report.json, or measure a program first with: torchdoctor run train.py"
        raise UsageError(f"There is no run in {RUNS} below this folder: {todo}")
    return sorted(reports, key=lambda path: path.stat().st_mtime, reverse=True)


def watched_run(named: Path | None) -> Path:
    """Return the folder that was named, else that of the newest watched run below this folder."""
    if named is not None:
        return named
    folders = [path.parent for path in Path(RUNS).glob(f"*/{_WATCH}") if path.is_dir()]
    if not folders:
        todo = "name its folder, or start a training with: torchdoctor watch train.py"
        raise UsageError(f"There is no watched run in {RUNS} below this folder: {todo}")
    return max(folders, key=lambda folder: (folder / _WATCH).stat().st_mtime)


def _watched(named: Path | None) -> Path | None:
    """Return the watched run's folder that is meant; None: a report of another kind is."""
    if named is not None:
        folder = named if named.is_dir() else named.parent
        folder = folder.parent if folder.name == _WATCH else folder
        return folder if (folder / _WATCH).is_dir() else None
    newest = max(Path(RUNS).glob("*"), key=lambda path: path.stat().st_mtime, default=None)
    return newest if newest is not None and (newest / _WATCH).is_dir() else None


def report(
    file: _File = None,
    format: ReportFormat = None,
    output: OutputFile = None,
    details: Details = False,
    open: _Open = False,
    list: _List = False,
    status: _Status = False,
    exit_code: ExitCode = False,
) -> None:
    """Render a report again, without torch."""
    form = format_of(format, output, more=["html", "sarif"])
    other_for_open = details or form != "text" or output is not None
    other_for_list = file is not None or details or open or status
    if (open and other_for_open) or (list and other_for_list):
        raise UsageError("--list and --open go with no other option; --open also takes a report.")
    if status or list:
        check_written({kind_of(form): output})
        with answer_to(output):
            if status:
                _show_status(file, form)
            else:
                _show_list(form)
        return
    run = _watched(file)
    if run is not None:
        check_written({kind_of(form): output})
        with answer_to(output):
            _show_watched(run, form, details, open)
        return
    _show_report(report_file(file), form, output, details, open, exit_code)


def _show_watched(run: Path, format: str, details: bool, open: bool) -> None:
    from torchdoctor.watch import end_report

    _show(
        format,
        open,
        page=run / "report.html",
        rendered=lambda form: end_report.rendered(run, form),
        on_screen=lambda: end_report.show(run, details),
    )


def _show(
    format: str,
    open: bool,
    page: Path,
    rendered: Callable[[str], str],
    on_screen: Callable[[], None],
) -> None:
    """Open the page, show it on the screen, or print it in another form."""
    if open:
        _open_page(page, lambda: rendered("html"))
    elif format == "text":
        on_screen()
    else:
        print_text(rendered(format))


def _show_report(
    path: Path, format: str, output: Path | None, details: bool, open: bool, exit_code: bool
) -> None:
    from torchdoctor.reports.formats import rendered, show
    from torchdoctor.schema.record_files import REPORT_NAME, read_report

    folder = path if path.is_dir() else path.parent
    check_written({kind_of(format, "report"): output}, read=[path, folder / REPORT_NAME])
    read = read_report(path)
    with answer_to(output):
        _show(
            format,
            open,
            page=folder / "report.html",
            rendered=lambda form: rendered(read, form, folder=str(Path.cwd())),
            on_screen=lambda: show(read, details),
        )
    leave_with_code(read, exit_code)


def _show_list(format: str) -> None:
    from torchdoctor.reports import markdown, runs, terminal

    files = _newest_first()
    document = runs.document(files)
    if format == "text":
        terminal.show(document)
    elif format == "markdown":
        print_text(markdown.render(document))
    elif format == "json":
        print_json(Summary(sentence=document.subject), runs=[str(path.parent) for path in files])
    else:
        raise UsageError("A list of runs is text, json or markdown.")


def _show_status(file: Path | None, format: str) -> None:
    from torchdoctor.reports import status
    from torchdoctor.reports.summary import with_json

    folder = file if file is not None else status.newest_run(Path(RUNS))
    run_status = status.read_status(folder)
    if format == "json":
        shown = replace(run_status, summary=with_json(run_status.summary))
        print_text(status.as_json(shown))
    elif format in ("text", "markdown"):
        print_text(status.as_text(run_status, format))
    else:
        raise UsageError("A status is text, json or markdown.")


def _open_page(page: Path, made: Callable[[], str]) -> None:
    """Open the page of a report; raise UsageError where there is no desktop."""
    import os
    import tempfile
    import webbrowser

    from torchdoctor.schema.record_files import write_text

    page = page.resolve()
    if not page.is_file():  # its run is gone
        page = Path(tempfile.mkdtemp(prefix="torchdoctor-")) / page.name
        write_text(made(), page)
    desktop = sys.platform in ("darwin", "win32")
    desktop = desktop or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")))
    if not desktop or not webbrowser.open(page.as_uri()):
        raise UsageError(
            f"There is no desktop here that could open {page}: copy it to a machine with a browser."
        )
    say(f"Opened {page}.", error=False)


def patch(
    file: _File = None,
    fixes: _Fixes = None,
    apply: _Apply = False,
    undo: _Undo = False,
    force: _Force = False,
    format: FileFormat = None,
    output: OutputFile = None,
) -> None:
    """Print the diff on stdout; what was proven of it, and what cannot be edited, on stderr."""
    form = format_of(format, output)
    if apply and undo:
        raise UsageError("Give --apply or --undo: one of them.")
    check_written({kind_of(form): output})
    with answer_to(output):
        changed = _patched(file, fixes, apply, undo, force, form)
    if apply and not changed:
        raise typer.Exit(UsageError.exit_code)


def _patched(
    file: Path | None, fixes: list[str] | None, apply: bool, undo: bool, force: bool, format: str
) -> bool:
    """Print it, and apply it or take it back if that is asked for; return True for a change."""
    from torchdoctor.edits import applying
    from torchdoctor.reports import handed_out
    from torchdoctor.schema.record_files import read_report

    if undo and file is None:  # the newest run may be one of the patched program
        kept = (path.with_name(applying.APPLIED_NAME) for path in _newest_first())
        file = next(filter(Path.exists, kept), None)
    file = report_file(file)
    record = (file if file.is_dir() else file.parent) / applying.APPLIED_NAME
    if undo:
        undone = [str(path) for path in applying.undo(record)]
        _print_undone(undone, format)
        return True
    read = read_report(file)
    asked = named_fixes(fixes)
    if asked:
        printed = _of_fixes(read, file, asked, apply)
    else:
        recommended = read.recommendation
        printed = _Printed(
            diff=recommended.patch or "",
            folder=recommended.patch_folder or read.workload.cwd,
            edited=handed_out.applied_sets(read),
            remarks=handed_out.remarks(read, apply),
        )
    if apply and printed.diff and not force:
        _refuse_rejected(read, printed.edited)
    proof = handed_out.proof(read, printed.edited) if printed.diff else []
    if format == "text":  # first, and before a file is changed
        for line in proof:
            say(line)
    to_change = apply and printed.diff
    made = applying.changes(printed.diff, printed.folder, record, force) if to_change else {}
    if format == "text":
        _print_diff(printed.diff)
    lines = printed.remarks
    if made:
        applying.apply(made, record)
        lines = [*(f"Changed {path}, as above." for path in made), _TAKE_BACK, *lines]
    if format == "text":
        for line in lines:
            say(line)
    else:
        changed = [str(path) for path in made]
        _print_patch(read, printed, [*proof, *lines], changed, _commands_of(file, asked), format)
    return bool(made)


def _print_diff(diff: str) -> None:
    """Print it as the files are, whose text the encoding may lack; on a terminal with escapes."""
    shown = visible(diff) if sys.stdout.isatty() else diff
    sys.stdout.buffer.write(shown.encode("utf-8", "surrogateescape"))
    sys.stdout.flush()


def _print_undone(files: list[str], format: str) -> None:
    if format == "json":
        print_json(Summary(sentence="The files are as they were before the patch."), undone=files)
        return
    for path in files:
        mark = "- " if format == "markdown" else ""
        say(f"{mark}{path} is as it was before the patch.", error=False)


@dataclass(frozen=True, kw_only=True)
class _Commands:
    """What the report of a patch is called in commands."""

    show: str  # the command that prints it
    report: str  # the path of report.json
    of_fixes: bool  # the fixes were named, in place of those recommended


def _commands_of(file: Path, asked: Sequence[str]) -> _Commands:
    from torchdoctor.schema.record_files import REPORT_NAME

    named = shlex.quote(str(file))
    only = "".join(f" --fixes {shlex.quote(fix)}" for fix in asked)
    report = file / REPORT_NAME if file.is_dir() else file
    return _Commands(
        show=f"torchdoctor patch {named}{only}",
        report=str(report.absolute()),
        of_fixes=bool(asked),
    )


def _print_patch(
    report: Report,
    printed: "_Printed",
    remarks: list[str],
    changed: list[str],
    commands: _Commands,
    format: str,
) -> None:
    """Print the diff and all that is said of it, as JSON or Markdown."""
    if format == "markdown":
        fence = f"````diff\n{visible(printed.diff)}````\n\n" if printed.diff else ""
        print_text(fence + "".join(f"- {clean(line)}\n" for line in remarks))
        return
    from torchdoctor.reports import handed_out
    from torchdoctor.reports.summary import answering_json

    run = handed_out.patch_run(report, set_of(printed.edited))
    check = _check_of_patch(report, printed.edited, commands) if printed.diff else None
    following = None
    if printed.diff and not changed:
        following = NextCommand(command=f"{commands.show} --apply", why="It changes the files so.")
    elif changed and not (run is not None and run.proven):
        following = check
    print_json(
        Summary(
            sentence=remarks[0] if remarks else "There is no diff.",
            patch=commands.show,
            next=following,
        ),
        diff=printed.diff,
        folder=printed.folder,
        fixes=[fix.fix for fix in printed.edited],
        changed=changed,
        remarks=remarks,
        check=None if check is None else answering_json(check),
        undo=f"{commands.show} --undo" if changed else None,
    )


def _check_of_patch(
    report: Report, edited: list[RecommendedFix], commands: _Commands
) -> NextCommand | None:
    """Return the gate that measures an applied patch; None: there is nothing to compare with.

    It accepts the growth of memory that the report told of this patch.
    """
    from torchdoctor.gate.applied_patch import told_memory
    from torchdoctor.gate.stored import FEWEST_STORED

    path = shlex.quote(commands.report)
    folder = Path(report.workload.cwd)
    if len(report.baseline.launches_s) >= FEWEST_STORED:
        reference = f"--baseline {path}"
    elif any((place / ".git").exists() for place in (folder, *folder.parents)):
        reference = "--against HEAD"
    else:
        return None
    fixes = [fix.fix for fix in edited] if commands.of_fixes else []
    if told_memory(report, fixes) is not None:
        reference += f" --patch-of {path}"
        reference += f" --fixes {shlex.quote(','.join(fixes))}" if fixes else ""
    command = f"torchdoctor gate {reference} -- {shlex.join(report.workload.command)}"
    why = "Once the patch is applied, it measures the changed program against the old one."
    return NextCommand(command=command, why=why)


@dataclass(frozen=True, kw_only=True)
class _Printed:
    """One diff, and what is said of it."""

    diff: str  # empty: no edit can be made
    folder: str
    edited: list[RecommendedFix]
    remarks: list[str]


def _refuse_rejected(report: Report, edited: list[RecommendedFix]) -> None:
    """Raise UsageError if the run has tried the patch of these fixes and rejected it."""
    from torchdoctor.reports import handed_out

    problem = handed_out.problem_of_patch(report, set_of(edited))
    if problem is not None:
        tried = handed_out.rejected_sentence(problem).rstrip(".")
        raise UsageError(f"{tried}; nothing was changed, and --force applies it all the same.")


def _of_fixes(report: Report, file: Path, asked: list[str], applied: bool) -> _Printed:
    """Return one diff of these fixes; of several it is made anew, as two may change one call."""
    from torchdoctor.advice.catalogue import fixes
    from torchdoctor.advice.wording import source_patch
    from torchdoctor.reports.handed_out import edit_of, measured_at_run_time, remarks_on

    shown = [edit_of(report, ident) for ident in asked]
    editable = [fix for fix in shown if fix.edit]
    if len(shown) == 1 and editable:
        diff = shown[0].edit or ""
        folder = shown[0].folder or report.workload.cwd
        made = asked
    else:
        wanted = set_of(editable)
        patch = source_patch(wanted, _recording(report, file), fixes()) if editable else None
        if patch is None:
            lines = [*measured_at_run_time(report, shown), *remarks_on(shown, [], None)]
            return _Printed(diff="", folder="", edited=[], remarks=lines)
        diff = patch.diff
        folder = patch.folder
        made = patch.fixes
    lines = remarks_on(shown, made, None if applied else folder)
    edited = [fix for fix in shown if fix.fix in made]
    if len(edited) < len(shown):  # else said before the diff
        lines = [*measured_at_run_time(report, shown), *lines]
    return _Printed(diff=diff, folder=folder, edited=edited, remarks=lines)


def _recording(report: Report, file: Path) -> Recording:
    """Return what the run saw, where the source is to be changed; UsageError: it is gone."""
    from torchdoctor.schema.record_files import RECORDING_NAME, read_recording

    for folder in (file if file.is_dir() else file.parent, Path(report.run_folder or ".")):
        if (folder / RECORDING_NAME).is_file():
            recording = read_recording(folder / RECORDING_NAME)
            if recording.workload.command == report.workload.command:
                return recording
    raise UsageError(
        f"One diff of several fixes needs the run's {RECORDING_NAME}, which is not beside this "
        "report: name the report in the run's own folder, or print one fix at a time."
    )


def env(format: FileFormat = None, output: OutputFile = None) -> None:
    """Show what torchdoctor sees of this machine, and which fixes that rules out."""
    from torchdoctor.clusters.allocation import described
    from torchdoctor.reports.wording import machine
    from torchdoctor.runs.machine import FIGURES_AT, describe_environment, seen_environment

    form = format_of(format, output)
    check_written({kind_of(form): output})
    environment = seen_environment()
    lines = [*described(), *describe_environment(environment)]
    with answer_to(output):
        match form:
            case "json":
                answer = Summary(sentence=machine(environment.machine))
                print_json(answer, **vars(environment), job=described())
            case "markdown":
                print_text("```\n" + "\n".join(map(clean, lines)) + "\n```\n")
            case _:
                for line in lines:
                    print_filled([line], 4 if line.startswith(" ") else FIGURES_AT)
