"""The tools: what each takes, the command that it starts, and its answer.

An answer is the summary of that command's JSON, with `next` as a call of a tool. null as `next`:
nothing is left to do.
"""

import itertools
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

import msgspec

from torchdoctor.cli.mcp.commands import (
    Command,
    CommandError,
    Commands,
    checked_folder,
    wait_for_run,
)
from torchdoctor.cli.mcp.next_call import as_call, call
from torchdoctor.reports.status import STATUS_NAME
from torchdoctor.schema.errors import Inconclusive, UsageError

_LONGEST_WAIT_S = 40  # many clients give up after a minute, and processes start and end in it


def _told(text: str, **more: Any) -> Any:
    return msgspec.Meta(description=text, **more)


Folder = Annotated[
    str | None, _told("Absolute path of the project's folder; relative paths start there.")
]
Program = Annotated[
    list[str],
    _told(
        'The script with its own arguments, such as ["train.py", "--lr", "0.1"], or any command, '
        'such as ["torchrun", "--nproc-per-node", "2", "train.py"].',
        min_length=1,
    ),
]
Python = Annotated[str | None, _told("The interpreter that has torch (default: looked for).")]
Budget = Annotated[str, _told("Time for everything: 90s, 5m, 1h.")]
Network = Annotated[str, _told('"on", or "off": the program is cut off from the network.')]
WaitS = Annotated[
    float,
    _told(
        "Seconds to wait for the end before answering where it stands.", ge=0, le=_LONGEST_WAIT_S
    ),
]
StepsTotal = Annotated[
    int, _told("Steps of the whole training, to tell the hours that are saved.", ge=1)
]
CostPerHour = Annotated[
    float, _told("What an hour costs, to tell what is saved; with steps_total.", ge=0)
]
RunFolder = Annotated[str | None, _told("The folder that an earlier answer named.")]


class _Arguments(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    folder: Folder = None


class DiagnoseScript(_Arguments):
    """Say why a training or inference script is slow, with file and line; no fix is tried.

    It runs the script unchanged for about 15 to 60 s. If it still goes on, the answer says so.
    """

    program: Program
    budget: Budget = "5m"
    python: Python = None
    network: Network = "on"
    wait_s: WaitS = 35


class RunTrials(_Arguments):
    """Diagnose a program, try fixes on it side by side, and recommend what is proven faster.

    With `program` it starts a run in the background; with `run_folder` it says where one stands.
    Ask again until `state` is "ended". Run one at a time, with nothing else heavy beside it.
    """

    program: Program | None = None
    run_folder: RunFolder = None
    budget: Budget = "5m"
    fixes: Annotated[list[str], _told("Try only these fixes, by id (default: all).")] = []
    allow_training_changes: Annotated[bool, _told("Also try a larger batch and the like.")] = False
    allow_output_changes: Annotated[bool, _told("Also recommend what changes decisions.")] = False
    steps_total: StepsTotal | None = None
    cost_per_hour: CostPerHour | None = None
    python: Python = None
    network: Network = "on"
    wait_s: WaitS = 20


class DiagnoseTrace(_Arguments):
    """Say why a recorded training was slow, by PyTorch profiler traces; nothing is run."""

    traces: Annotated[list[str], _told("Traces (.json, .json.gz), or one folder of all ranks.")]


class Explain(_Arguments):
    """Return the page of a check or fix: what it means, what to do, when not, and at which risk."""

    id: Annotated[str, _told("Its id, such as loader-workers.")]


class Patch(_Arguments):
    """Return the recommended edits as one unified diff, and what was proven of it.

    It changes no file: apply the diff by yourself, in the folder that the answer names.
    """

    run_folder: RunFolder = None
    fixes: Annotated[
        list[str], _told("The edits of these fixes instead, recommended or only offered.")
    ] = []


class Gate(_Arguments):
    """Say whether a program got slower: measured against a commit or against a stored report.

    With `program` it starts; with `job` it says where it stands.
    """

    program: Program | None = None
    job: Annotated[str | None, _told("The job that an earlier answer named.")] = None
    against: Annotated[str | None, _told("Commit, branch or tag of git to compare with.")] = None
    baseline: Annotated[str | None, _told("A report.json of run_trials to compare with.")] = None
    tolerance: Annotated[str | None, _told("Such as step_time=5%,peak_memory=10%.")] = None
    patch_of: Annotated[
        str | None, _told("The report.json whose patch was applied: memory may grow as it told.")
    ] = None
    fixes: Annotated[list[str], _told("With patch_of: the fixes applied, if not the patch.")] = []
    budget: Budget = "10m"
    python: Python = None
    wait_s: WaitS = 35


class Compare(_Arguments):
    """Say what changed from A to B, of two reports or traces; nothing is run."""

    a: Annotated[str, _told("A report.json, a run's folder or a trace.")]
    b: Annotated[str, _told("Another of these.")]


class Tools:
    """The tools of one client."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands
        self._jobs: dict[str, tuple[Command, str]] = {}  # gates that go on, with their folders
        self._numbers = itertools.count(1)
        self._folders: dict[str, str] = {}  # where each run's program was started

    async def diagnose_script(self, asked: DiagnoseScript) -> dict[str, Any]:
        """Start a run without fixes, and wait a while for its end."""
        return await self._started(asked, ["--no-fixes"])

    async def run_trials(self, asked: RunTrials) -> dict[str, Any]:
        """Start a run, or say where one stands."""
        if (asked.program is None) == (asked.run_folder is None):
            raise UsageError("Give program to start a run, or run_folder to ask where one stands.")
        if asked.run_folder is not None:
            folder = checked_folder(asked.folder or self._folders.get(asked.run_folder))
            return await self._standing(Path(folder, asked.run_folder), folder, asked.wait_s)
        options = ["--fixes", ",".join(asked.fixes)] if asked.fixes else []
        if asked.allow_training_changes:
            options.append("--allow-training-changes")
        if asked.allow_output_changes:
            options.append("--allow-output-changes")
        for name, value in (
            ("--steps-total", asked.steps_total),
            ("--cost-per-hour", asked.cost_per_hour),
        ):
            options += [name, str(value)] if value is not None else []
        return await self._started(asked, options)

    async def _started(
        self, asked: DiagnoseScript | RunTrials, tool_options: list[str]
    ) -> dict[str, Any]:
        began_s = time.monotonic()
        folder = checked_folder(asked.folder)
        options = ["--detach", *tool_options, "--budget", asked.budget, "--network", asked.network]
        options += ["--python", asked.python] if asked.python else []
        words = ["run", *options, "--format", "json", "--", *(asked.program or [])]
        command = self._commands.start(words, folder)
        await command.wait(None)
        begun = command.answer()
        self._commands.guarded(begun["pid"])
        self._folders[begun["run_folder"]] = folder
        left_s = asked.wait_s - (time.monotonic() - began_s)
        return await self._standing(Path(begun["run_folder"]), folder, left_s)

    async def _standing(self, run: Path, folder: str, wait_s: float) -> dict[str, Any]:
        await wait_for_run(run / STATUS_NAME, wait_s)
        status = await self._commands.answer(["report", "--status"], [str(run)], folder)
        if status["state"] in ("failed", "gone"):
            raise CommandError(status["summary"]["sentence"])
        names = ("state", "message", "best", "elapsed_s", "budget_s")
        fields = {name: status[name] for name in names if status.get(name) is not None}
        answer = _answer(status, folder)
        if status["state"] == "running":
            again = {"run_folder": status["run_folder"], "folder": folder}
            answer["next"] = call("run_trials", again, "It is not decided yet: ask again.")
        else:
            fields.pop("message", None)
        return {**fields, "run_folder": status["run_folder"], **answer}

    async def diagnose_trace(self, asked: DiagnoseTrace) -> dict[str, Any]:
        """Diagnose traces."""
        folder = checked_folder(asked.folder)
        return _answer(await self._commands.answer(["diagnose"], asked.traces, folder), folder)

    async def explain(self, asked: Explain) -> dict[str, Any]:
        """Return a page."""
        folder = checked_folder(asked.folder)
        explanation = await self._commands.answer(["explain"], [asked.id], folder)
        here = {"in_newest_run": explanation["newest_run"]} if explanation["newest_run"] else {}
        return {
            "page": explanation["page"],
            **here,
            "next": as_call(explanation["summary"]["next"], folder),
        }

    async def patch(self, asked: Patch) -> dict[str, Any]:
        """Return a diff, and how to check it once it is applied."""
        folder = checked_folder(asked.folder)
        run = [asked.run_folder] if asked.run_folder else []
        only = [f"--fixes={','.join(asked.fixes)}"] if asked.fixes else []
        result = await self._commands.answer(["patch", *only], run, folder)
        answer = {name: result[name] for name in ("diff", "folder", "fixes", "remarks")}
        return {**answer, "next": as_call(result["check"], folder)}

    async def gate(self, asked: Gate) -> dict[str, Any]:
        """Start a gate, or say where one stands."""
        if (asked.program is None) == (asked.job is None):
            raise UsageError("Give program to start a gate, or job to ask where one stands.")
        name = asked.job or self._gate_begun(asked)
        if name not in self._jobs:
            raise UsageError(f"There is no job {name}: its result was told, or it never began.")
        command, folder = self._jobs[name]
        if not await command.wait(asked.wait_s):
            again = call("gate", {"job": name}, "It is still measured: ask again.")
            return {"state": "running", "job": name, "next": again}
        del self._jobs[name]
        try:
            result = command.answer()
        except CommandError as error:
            if command.process.returncode != Inconclusive.exit_code:
                raise
            outcome = {"verdict": "inconclusive", "sentence": str(error)}
            return {"state": "ended", **outcome, "next": None}
        return {"state": "ended", "verdict": result["verdict"], **_answer(result, folder)}

    def _gate_begun(self, asked: Gate) -> str:
        folder = checked_folder(asked.folder)
        given = ("against", "baseline", "tolerance", "patch_of", "budget", "python")
        options = [
            word
            for option in given
            if (value := getattr(asked, option))
            for word in (f"--{option.replace('_', '-')}", value)
        ]
        if asked.fixes:
            options.append(f"--fixes={','.join(asked.fixes)}")
        words = ["gate", "--quiet", "--format", "json", *options, "--", *(asked.program or [])]
        name = f"gate-{next(self._numbers)}"
        self._jobs[name] = self._commands.start(words, folder), folder
        return name

    async def compare(self, asked: Compare) -> dict[str, Any]:
        """Compare two reports or traces."""
        folder = checked_folder(asked.folder)
        return _answer(await self._commands.answer(["compare"], [asked.a, asked.b], folder), folder)


def _answer(result: dict[str, Any], folder: str) -> dict[str, Any]:
    """Return what is known of a summary, and what to do next; null: nothing."""
    summary = result["summary"]
    fields = {
        name: value for name, value in summary.items() if value is not None and name != "patch"
    }
    return {**fields, "next": as_call(summary["next"], folder)}


ARGUMENTS: dict[str, type[_Arguments]] = {
    "diagnose_script": DiagnoseScript,
    "run_trials": RunTrials,
    "diagnose_trace": DiagnoseTrace,
    "explain": Explain,
    "patch": Patch,
    "gate": Gate,
    "compare": Compare,
}


async def answered(tools: Tools, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Call a tool; raise UsageError or CommandError, each with one sentence."""
    if name not in ARGUMENTS:
        raise UsageError(f"There is no tool {name}: there are {', '.join(ARGUMENTS)}.")
    try:
        asked = msgspec.convert(arguments, ARGUMENTS[name])
    except msgspec.ValidationError as error:
        raise UsageError(f"{name}: {str(error).replace('$.', '')}.") from error
    tool: Callable[[Any], Awaitable[dict[str, Any]]] = getattr(tools, name)
    return await tool(asked)
