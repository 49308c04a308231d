"""`torchdoctor mcp`, spoken to by the official SDK's own client."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import psutil
import pytest
import synthetic_traces
from left_behind import left_in
from light_torch import LIGHT

from torchdoctor.cli.mcp.next_call import as_call
from torchdoctor.cli.mcp.tools import ARGUMENTS

if TYPE_CHECKING:  # a second, in each of the processes that collect tests
    from mcp import Client

ROOT = Path(__file__).parent.parent.parent
PYTHON = sys.executable
# It prints what a protocol on the same stream would choke on.
SCRIPT = f"""\
import time
import torch
{LIGHT}from torch.utils.data import DataLoader, Dataset


class Slow(Dataset):
    def __len__(self):
        return 20000

    def __getitem__(self, index):
        time.sleep(0.001)
        return torch.full((8,), index % 7 / 7)


print('{{"jsonrpc": "2.0", "id": 1, "result": {{}}}}', flush=True)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for batch in DataLoader(Slow(), batch_size=8):
    loss = (model(batch) - 1).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""

Call = Callable[..., Awaitable[Any]]


def with_client(story: Callable[[Client, Call], Awaitable[None]]) -> None:
    """Run a story with a client, whose call returns the answer, or an error's sentence."""
    from mcp import Client, StdioServerParameters

    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "torchdoctor", "mcp"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=str(ROOT),
    )

    async def told() -> None:
        async with Client(server) as client:

            async def call(name: str, **arguments: Any) -> Any:
                result = await client.call_tool(name, arguments)
                (content,) = result.content
                return content.text if result.is_error else json.loads(content.text)

            await story(client, call)

    anyio.run(told)


@pytest.mark.slow
@pytest.mark.xdist_group("trials")
def test_an_agent_s_whole_story(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    named = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "train.py"], ["commit", "-qm", "first"]):
        subprocess.run(["git", *named, *words], cwd=tmp_path, check=True)

    async def until_ended(call: Call, answer: dict[str, Any]) -> dict[str, Any]:
        while answer["state"] == "running":
            following = answer["next"]
            answer = await call(following["tool"], **following["arguments"])
        return answer

    async def story(client: Client, asked: Call) -> None:
        async def call(name: str, **arguments: Any) -> Any:
            answer = await asked(name, **arguments)
            assert isinstance(answer, dict), f"{name}: {answer}"
            return answer

        listed = await client.list_tools()
        assert {tool.name for tool in listed.tools} == {
            *("diagnose_script", "run_trials", "diagnose_trace", "explain", "patch", "gate"),
            "compare",
        }
        assert all(tool.description and tool.input_schema for tool in listed.tools)

        given = {"program": ["train.py"], "folder": str(tmp_path)}
        diagnosed = await until_ended(call, await call("diagnose_script", **given, python=PYTHON))
        assert diagnosed["bottleneck"] == "data_loader"
        assert diagnosed["location"].startswith("train.py:")
        following = diagnosed["next"]
        assert following["tool"] == "run_trials"
        assert following["arguments"]["folder"] == str(tmp_path)

        arguments = {**following["arguments"], "budget": "12s", "fixes": ["loader-workers"]}
        ended = await until_ended(call, await call("run_trials", **arguments, wait_s=0))
        assert ended["state"] == "ended"
        assert ended["bottleneck"] == "data_loader"
        assert len(json.dumps(ended)) < 3000

        page = await call("explain", id="loader-workers", folder=str(tmp_path))
        assert "num_workers" in page["page"]

        # A short run on a busy machine need not prove it: the diagnosis offers it all the same.
        fixes = {"fixes": ["loader-workers"], "run_folder": diagnosed["run_folder"]}
        patch = await call("patch", **fixes, folder=str(tmp_path))
        assert "+" in patch["diff"] and "num_workers" in patch["diff"]
        assert script.read_text() == SCRIPT, "a patch changes nothing by itself"
        assert patch["next"]["tool"] == "gate"
        assert patch["next"]["arguments"]["against"] == "HEAD", "that run stored no launches"

        diff = patch["diff"].encode()
        subprocess.run(["git", "apply"], input=diff, cwd=patch["folder"], check=True)
        gated = await call("gate", **{**patch["next"]["arguments"], "budget": "8s", "wait_s": 0})
        gated = await until_ended(call, gated)
        assert gated["verdict"] in ("not slower", "slower", "inconclusive")

        reports = sorted(tmp_path.glob("torchdoctor-runs/*/report.json"))
        compared = await call("compare", a=str(reports[0]), b=str(reports[1]))
        assert compared["sentence"]

    with_client(story)
    assert left_in(tmp_path) == []


@pytest.mark.slow
def test_bad_input_is_one_sentence_and_the_server_goes_on(tmp_path: Path) -> None:
    async def story(client: Client, call: Call) -> None:
        for name, arguments, told in [
            ("diagnose_script", {"program": ["none.py"], "folder": str(tmp_path)}, "none.py"),
            ("diagnose_script", {}, "program"),
            ("diagnose_script", {"program": "train.py"}, "program"),
            ("diagnose_script", {"program": [], "folder": str(tmp_path)}, "program"),
            ("run_trials", {}, "run_folder"),
            ("run_trials", {"run_folder": "/nowhere"}, "/nowhere"),
            ("run_trials", {"program": ["a.py"], "unknown": 1}, "unknown"),
            ("run_trials", {"program": ["a.py"], "wait_s": 1e9}, "wait_s"),
            ("run_trials", {"program": ["a.py"], "folder": "/nowhere"}, "/nowhere"),
            ("diagnose_trace", {"traces": ["/nowhere.json"]}, "/nowhere.json"),
            ("explain", {"id": "loader-worker"}, "loader-workers"),
            ("explain", {"id": "--all"}, ""),
            ("patch", {"folder": str(tmp_path)}, "no run"),
            ("patch", {"run_folder": "--apply", "folder": str(tmp_path)}, ""),
            ("gate", {"job": "gate-9"}, "gate-9"),
            ("gate", {"program": ["none.py"], "folder": str(tmp_path)}, "--against"),
            ("compare", {"a": "/nowhere", "b": "/nowhere"}, "/nowhere"),
            ("no_such_tool", {}, "no_such_tool"),
        ]:
            answer = await call(name, **arguments)
            assert isinstance(answer, str), (name, arguments)
            assert told in answer, answer
            assert "\n" not in answer and "defect" not in answer and len(answer) < 600, answer
        trace = tmp_path / "trace.json"
        trace.write_bytes(synthetic_traces.every_branch().text())
        answer = await call("diagnose_trace", traces=[str(trace)])
        assert answer["bottleneck"] and "next" in answer

    with_client(story)


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, True])
def test_a_client_that_goes_away_leaves_no_process(tmp_path: Path, killed: bool) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)

    async def story(client: Client, call: Call) -> None:
        given = {"program": ["train.py"], "folder": str(tmp_path), "python": PYTHON}
        answer = await call("run_trials", **given, wait_s=8)
        assert answer["state"] == "running"
        gate = await call("gate", **given, baseline=_report(tmp_path), wait_s=0)
        assert gate["job"] or "report" in gate
        if killed:
            own = psutil.Process().children(recursive=True)
            servers = [x for x in own if x.cmdline()[1:] == ["-m", "torchdoctor", "mcp"]]
            os.kill(servers[0].pid, signal.SIGKILL)

    with_client(story)
    assert left_in(tmp_path) == []


def _report(folder: Path) -> str:
    report = folder / "before.json"
    report.write_bytes((ROOT / "docs" / "report.example.json").read_bytes())
    return str(report)


def test_every_tool_says_what_it_takes() -> None:
    from torchdoctor.cli.mcp.server import described

    for name in ARGUMENTS:
        tool = described(name)
        assert tool.description
        for argument in tool.input_schema["properties"].values():
            kinds = [argument, *argument.get("anyOf", [])]
            assert any("description" in kind for kind in kinds), (name, argument)


@pytest.mark.parametrize(
    ("command", "tool", "arguments"),
    [
        ("report --status /runs/1", "run_trials", {"run_folder": "/runs/1"}),
        ("report --format json --status /runs/1", "run_trials", {"run_folder": "/runs/1"}),
        ("explain data-wait", "explain", {"id": "data-wait"}),
        (
            "gate --format json --baseline /runs/1/report.json -- python a.py",
            "gate",
            {"program": ["python", "a.py"], "baseline": "/runs/1/report.json"},
        ),
        (
            "gate --against HEAD --patch-of /runs/1/report.json --fixes a,b -- python a.py -- -x",
            "gate",
            {
                "program": ["python", "a.py", "--", "-x"],
                "against": "HEAD",
                "patch_of": "/runs/1/report.json",
                "fixes": ["a", "b"],
            },
        ),
        ("patch /runs/1 --apply", "patch", {"run_folder": "/runs/1"}),
        ("patch /runs/1 --fixes a,b", "patch", {"run_folder": "/runs/1", "fixes": ["a", "b"]}),
        (
            "run --budget 9m --fixes a,b --steps-total 9 -- python 'my train.py' --lr 1",
            "run_trials",
            {
                "program": ["python", "my train.py", "--lr", "1"],
                "budget": "9m",
                "steps_total": 9,
                "fixes": ["a", "b"],
            },
        ),
    ],
)
def test_the_command_that_comes_next_is_a_call(
    command: str, tool: str, arguments: dict[str, Any]
) -> None:
    told = as_call({"command": f"torchdoctor {command}", "why": "so"}, "/work")
    assert told is not None
    assert (told["tool"], told["why"]) == (tool, "so")
    assert {x: y for x, y in told["arguments"].items() if x != "folder"} == arguments


@pytest.mark.parametrize(
    "command", ["run --no-fork -- a.py", "gate --seed 1 -- a.py", "report /runs/1 --details", "env"]
)
def test_a_command_that_no_tool_stands_for_stays_as_it_is(command: str) -> None:
    following = {"command": f"torchdoctor {command}", "why": "so"}
    assert as_call(following, "/work") == following
