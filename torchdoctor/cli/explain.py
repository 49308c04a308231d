"""`torchdoctor explain`: the pages of checks and fixes, and what comes after one is read."""

import shlex
from typing import Annotated

import typer

from torchdoctor.cli.arguments import FileFormat, OutputFile, format_of
from torchdoctor.cli.outputs import (
    answer_to,
    check_written,
    kind_of,
    print_filled,
    print_json,
    print_text,
)
from torchdoctor.cli.stored import report_file
from torchdoctor.schema import RecommendedFix, Report
from torchdoctor.schema.errors import UsageError
from torchdoctor.schema.summary import NextCommand, Summary

_TREE_HANGS = 8


def explain(
    id: Annotated[str | None, typer.Argument(help="A check's or fix's id.")] = None,
    tree: Annotated[bool, typer.Option("--tree", help="The decision tree.")] = False,
    all: Annotated[bool, typer.Option("--all", help="Every id with its title.")] = False,
    format: FileFormat = None,
    output: OutputFile = None,
) -> None:
    """Print a check's or fix's page: what, why, when not, risk, sources."""
    form = format_of(format, output)
    if [id is not None, tree, all].count(True) > 1:
        raise UsageError("Give the id of a check or fix, or --tree, or --all: one of them.")
    check_written({kind_of(form): output})
    with answer_to(output):
        if form == "text":
            _print_page(id, tree, all)
        else:
            _print_explained(id, tree, form)


def _print_page(id: str | None, tree: bool, all: bool) -> None:
    from torchdoctor.advice import catalogue
    from torchdoctor.reports.wrapping import reflow, width

    if tree:
        print_filled(catalogue.tree().splitlines(), _TREE_HANGS)
    elif all or id is None:
        print_filled(catalogue.listing().splitlines(), catalogue.TITLES_AT)
    else:
        typer.echo(reflow(catalogue.explain(id), width()))
        print_filled(_in_newest_run(id), 2)


def _print_explained(id: str | None, tree: bool, format: str) -> None:
    from torchdoctor.advice import catalogue

    if id is not None:
        page = catalogue.explain(id)
        here = _in_newest_run(id)
        sentence = page.strip().partition("\n")[0]
        if format == "json":
            answer = Summary(sentence=sentence, next=_after_page(id))
            print_json(answer, id=id, page=page, newest_run=here[2:])
        else:
            print_text("\n".join([page.rstrip(), *here]) + "\n")
        return
    text = catalogue.tree() if tree else catalogue.listing()
    if format == "markdown":
        print_text(f"```\n{text.rstrip()}\n```\n")
    elif tree:
        print_json(Summary(sentence="The decision tree."), tree=text.splitlines())
    else:
        specs_by_kind = {"checks": catalogue.checks().values(), "fixes": catalogue.fixes().values()}
        titles = {
            kind: {spec.ident: spec.title for spec in specs}
            for kind, specs in specs_by_kind.items()
        }
        print_json(Summary(sentence="All checks and fixes, by id."), **titles)


def _after_page(id: str) -> NextCommand | None:
    """Return what to do once a page is read; None: the newest run has decided it, or there is none.

    A check leads to a fix that treats it. A fix is measured on the program of the newest run,
    unless that run offers it or tried it, or no run can try it.
    """
    from torchdoctor.advice import catalogue
    from torchdoctor.schema.record_files import read_report

    try:
        folder = report_file(None).parent
        report = read_report(folder)
    except UsageError:
        report = None
    if id in catalogue.checks():
        fix = _treating(id, report)
        if fix is None:
            return None
        return NextCommand(command=f"torchdoctor explain {fix}", why="It treats this.")
    if report is None:
        return None
    if any(fix.fix == id and fix.edit for fix in _shown(report)):
        command = f"torchdoctor patch {shlex.quote(str(folder.absolute()))} --fixes {id}"
        return NextCommand(command=command, why="It prints this edit of the newest run's program.")
    tried = any(id in trial.fixes for trial in report.trials if trial.pairs)
    can_be_tried = not catalogue.fixes()[id].untried and id not in _refused(report)
    if tried or not can_be_tried or not report.workload.command:
        return None
    return _measuring(id, report)


def _treating(check: str, report: Report | None) -> str | None:
    """Return a fix of the check, one that the newest run offers first; None: it refused all."""
    from torchdoctor.advice import catalogue

    fixes = catalogue.treating(check)
    if report is None:
        return next(iter(fixes), None)
    offered = [fix.fix for fix in _shown(report)]
    refused = _refused(report)
    left = [fix for fix in fixes if fix not in refused]
    return next((fix for fix in offered if fix in left), next(iter(left), None))


def _shown(report: Report) -> list[RecommendedFix]:
    return [*report.recommendation.fixes, *report.recommendation.also_offered]


def _refused(report: Report) -> set[str]:
    """Return the fixes that cannot apply to the program."""
    rows = [trial for trial in report.trials if trial.verdict == "refused"]
    return {fix for trial in rows for fix in trial.fixes}


def _measuring(fix: str, report: Report) -> NextCommand:
    """Return how a fix is measured on the program of a report."""
    from torchdoctor.reports.summary import CELL_MAGIC, is_of_cell

    if is_of_cell(report):
        why = "It measures this fix: begin the cell with this line, and run the cell again."
        return NextCommand(command=f"{CELL_MAGIC} --fixes {fix}", why=why)
    command = f"torchdoctor run --fixes {fix} -- {shlex.join(report.workload.command)}"
    return NextCommand(command=command, why="It measures this fix on the newest run's program.")


def _in_newest_run(ident: str) -> list[str]:
    """Return what the newest run of this folder says of a check or fix; nothing without a run."""
    from torchdoctor.reports.details import lines_about
    from torchdoctor.schema.record_files import read_report

    try:
        file = report_file(None)
        lines = lines_about(read_report(file), ident)
    except UsageError:
        return []
    return ["", f"In the newest run here ({file.parent}):", *lines] if lines else []
