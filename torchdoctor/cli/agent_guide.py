"""`torchdoctor agent-guide`: the page for coding agents, which docs/agents.md is too."""

from torchdoctor.cli.arguments import Format, checked_format

EXIT_CODES = {
    0: "done; of gate: not slower",
    1: "gate: slower",
    2: "usage: the sentence on stderr says what to change; do not repeat the command as it was",
    3: "the program failed; its own traceback is shown. Mend the program first",
    4: "no training step found: give `--step-on`, or call `torchdoctor.step()` in the loop",
    5: "timed out before the first steps: give a longer `--timeout`",
    6: "gate: not decided or not comparable",
    10: "a fix is recommended (`run`, `report`, `diagnose` with `--exit-code`; else 0)",
    70: "a defect of torchdoctor; the file that stderr names says more",
    130: "interrupted; what was measured is kept",
}
IN_SHORT = (
    "torchdoctor says why a PyTorch program is slow, tries fixes on it unchanged, and returns a "
    "measured patch. Start with run_trials (or diagnose_script for the cause alone), ask again "
    "with its run_folder until state is ended, then patch. Each answer has next, the call to make "
    "now; null: nothing is left to do. A question that is decided stays so: do not run it again "
    "for the same program. Run one at a time, with nothing heavy beside it."
)
_PAGE = """\
# torchdoctor for coding agents

> torchdoctor says why a PyTorch program is slow, with file and line, tries fixes on it side by side
> without an edit, and prints a patch of the source that was itself applied to a copy and measured.

## What to run when

| you have | run | it takes |
| --- | --- | --- |
| a slow script, and want it faster | `torchdoctor run --detach --format json train.py` | 5 minutes, or \
`--budget` |
| a slow script, and want the cause alone | `torchdoctor run --no-fixes --format json train.py` | 15 \
to 60 s |
| a run that goes on | `torchdoctor report --status --format json FOLDER` | 1 s |
| a run that ended | `torchdoctor report FOLDER --format json` | 1 s |
| a recommendation | `torchdoctor patch FOLDER`, then `--apply`; `--undo` takes it back | 1 s |
| a PyTorch profiler trace | `torchdoctor diagnose trace.json.gz --format json` | seconds |
| two reports or traces | `torchdoctor compare A B --format json` | seconds |
| a change that may have made it slower | `torchdoctor gate --against main --format json train.py` | \
up to 10 minutes |
| the id of a check or fix | `torchdoctor explain ID --format json` | 1 s |

Options of torchdoctor stand before the script, the script's own after it. The script is never
edited, and what it writes goes to a scratch layer. Do not shorten the script, wrap it in a
profiler or add timers: the run needs it as it is, long enough for some hundred steps.

## How to read an answer

With `--format json` the output is JSON alone, and its first field, `summary`, has all that decides in
2 KB: `bottleneck`, `sentence`, `location` (file:line), `cause`, `cure`, `recommendation` (fixes,
speed-up with its 95 % interval, evidence), `patch`, and `next`: the exact command that is worth
running now, and why. Where `next` is null, nothing is left to do. The diagnosis is known after about
15 s of a run: `report --status` has it while fixes are still tried.

## What the words of evidence mean

| word | meaning | what to do |
| --- | --- | --- |
| measured as a patch applied to a copy | the speed-up is of the edited source itself | apply it |
| switched on at run time | the fix was measured, its edit was not | edit, then `gate` |
| N pairs of launches | fresh launches with and without, by turns; the interval is over these | \
cite the interval |
| training identical, within rounding, within seed noise | losses and samples stay the same, so far | \
nothing |
| training not known | nothing could be compared | look at the losses yourself |
| not proven, looks faster | the interval has 1, or pairs are too few | a longer `--budget`, once |
| not measured, offered, by hand | advice from what was seen, without a figure | `explain` it first |
| upper bound, ceiling | no fix can give more than this | stop where it is little |
| refused | it cannot apply here; the reason is said | do not try it by hand |

## What not to do

- Never run a decided question again: where `next` is null, or a fix was measured as no faster, another
  run of the same program only costs time. Run again after the source changed.
- Never run two at a time, or anything heavy beside one: others' load is told, and weakens the answer.
- Never report a speed-up without its interval, and no figure that the report does not have.
- Do not use `--no-sandbox` or `--allow-training-changes` unless the user agreed: the first writes to
  their files, the second changes what is learned.
- Do not apply by hand what the report rejected; its reason was measured.

## Exit codes

| code | meaning |
| --- | --- |
{exit_codes}

Usage errors are one sentence on stderr.

## By the Model Context Protocol

`pip install 'torchdoctor[mcp]'`, and give the client `{{"command": "torchdoctor", "args": ["mcp"]}}`. Its
tools are `diagnose_script`, `run_trials`, `diagnose_trace`, `explain`, `patch` (a diff; it changes no
file), `gate` and `compare`; `next` of an answer is the tool to call now, with its arguments. It starts
the commands above, opens no port, and all that it started ends with the client.
"""


def page() -> str:
    """Return the page, as Markdown."""
    rows = "\n".join(f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items())
    return _PAGE.format(exit_codes=rows)


def agent_guide(format: Format = "text") -> None:
    """Print a page for coding agents: when to run what, and what answers mean."""
    from torchdoctor.cli.outputs import print_json, print_text
    from torchdoctor.words.summary import Summary

    if checked_format(format) == "json":
        print_json(Summary(sentence=IN_SHORT), page=page())
    else:
        print_text(page())
