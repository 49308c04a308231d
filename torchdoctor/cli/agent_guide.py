"""`torchdoctor agent-guide`: the page for coding agents, which docs/agents.md is too."""

from pathlib import Path

from torchdoctor.cli.arguments import FileFormat, OutputFile, format_of

IN_SHORT = (
    "torchdoctor says why a PyTorch program is slow, tries fixes on it unchanged, and returns a "
    "measured patch. Start with run_trials (or diagnose_script for the cause alone), ask again "
    "with its run_folder until state is ended, then patch. Each answer has next, the call to make "
    "now; null: nothing is left to do. A question that is decided stays so: do not run it again "
    "for the same program. Run one at a time, with nothing heavy beside it."
)


def page() -> str:
    """Return the page, as Markdown."""
    return Path(__file__).with_suffix(".md").read_text(encoding="utf-8")


def agent_guide(format: FileFormat = None, output: OutputFile = None) -> None:
    """Print a page for coding agents: when to run what, and what answers mean."""
    from torchdoctor.cli.outputs import answer_to, check_written, kind_of, print_json, print_text
    from torchdoctor.schema.summary import Summary

    form = format_of(format, output)
    check_written({kind_of(form): output})
    with answer_to(output):
        if form == "json":
            print_json(Summary(sentence=IN_SHORT), page=page())
        else:
            print_text(page())
