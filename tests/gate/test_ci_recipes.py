"""The GitHub action and the recipes in docs/gate.md: their own YAML, and their own shell steps."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import pytest
import yaml
from repository import TRAIN, git, state

ROOT = Path(__file__).parent.parent.parent
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())


def recipes() -> list[dict]:
    text = (ROOT / "docs" / "gate.md").read_text()
    return [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]


def test_the_recipes_use_what_the_action_and_the_command_have() -> None:
    github = next(x["jobs"] for x in recipes() if "jobs" in x)
    gitlab = next(x for x in recipes() if "jobs" not in x)
    steps = [step for job in github.values() for step in job["steps"]]
    used = next(step for step in steps if "torchdoctor" in step.get("uses", ""))
    assert set(used["with"]) <= set(ACTION["inputs"])
    asked = set(re.findall(r"steps\.(\w+)\.outputs\.(\w+)", json.dumps(steps)))
    assert {step for step, _ in asked} == {used["id"]}
    assert {output for _, output in asked} <= set(ACTION["outputs"])
    checkout = next(step for step in steps if step.get("uses", "").startswith("actions/checkout"))
    assert checkout["with"]["fetch-depth"] == 0
    help_text = subprocess.run(
        [sys.executable, "-m", "torchdoctor.cli.front", "gate", "--help"],
        capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "200"},
    ).stdout  # fmt: skip
    comment = next(step for step in steps if "gh pr comment" in step.get("run", ""))
    assert "github.event_name == 'pull_request'" in comment["if"]
    assert "head.repo.full_name == github.repository" in comment["if"]
    assert comment["continue-on-error"] is True
    for job in gitlab.values():
        assert job["rules"] == [{"if": '$CI_PIPELINE_SOURCE == "merge_request_event"'}]
        assert job["allow_failure"] == {"exit_codes": [6]}
        installs = [line for line in job["script"] if "pip install" in line]
        assert any("git+https" in line for line in installs), "it is on no package index"
        [command] = [line for line in job["script"] if line.startswith("torchdoctor")]
        assert all(option in help_text for option in re.findall(r"--\w+", command))
        folder, _, name = job["artifacts"]["reports"]["junit"].partition("/")
        assert f"--output {folder} " in command and name == "gate.xml"
        assert job["variables"]["GIT_DEPTH"] == "0"


def test_both_hold_to_their_schemas(tmp_path: Path) -> None:
    pytest.importorskip("check_jsonschema")
    workflows = [{"on": "pull_request", **recipe} for recipe in recipes() if "jobs" in recipe]
    pipelines = [recipe for recipe in recipes() if "jobs" not in recipe]
    for schema, files in (
        ("vendor.github-actions", [ACTION]),
        ("vendor.github-workflows", workflows),
        ("vendor.gitlab-ci", pipelines),
    ):
        paths = [tmp_path / f"{schema}-{number}.yml" for number in range(len(files))]
        for path, content in zip(paths, files, strict=True):
            path.write_text(yaml.safe_dump(content))
        words = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema]
        result = subprocess.run([*words, *paths], capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout + result.stderr


def run_action(
    folder: Path, tmp_path: Path, event: dict[str, str] | None = None, **inputs: str
) -> tuple[int, str, dict[str, str], str]:
    """The action's measuring step as GitHub runs it: exit code, log, outputs and summary.

    `event`: variables that are not of an input, and what GitHub itself sets.
    """
    tools = tmp_path / "tools"
    tools.mkdir(exist_ok=True)
    (tools / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (tools / "python").chmod(0o755)
    [step] = [x for x in ACTION["runs"]["steps"] if x.get("id") == "gate"]
    variables = {}
    for name, value in step["env"].items():
        if wanted := re.findall(r"inputs\.([\w-]+)", value):
            variables[name] = inputs.get(wanted[0], ACTION["inputs"][wanted[0]].get("default", ""))
        else:
            variables[name] = (event or {}).get(name, "")
    script, output, summary = (tmp_path / x for x in ("step.sh", "output", "summary.md"))
    script.write_text(step["run"])
    output.write_text("")
    (tmp_path / "temp").mkdir(exist_ok=True)
    clean = {k: v for k, v in os.environ.items() if not k.startswith("GITHUB_")}
    result = subprocess.run(
        ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", str(script)],
        cwd=folder,
        env={
            **clean,
            **variables,
            "PATH": f"{tools}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "GITHUB_ACTIONS": "true",
            "GITHUB_OUTPUT": str(output),
            "GITHUB_STEP_SUMMARY": str(summary),
            "RUNNER_TEMP": str(tmp_path / "temp"),
            **(event or {}),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    found = dict(line.split("=", 1) for line in output.read_text().splitlines())
    said = summary.read_text() if summary.exists() else ""
    return result.returncode, result.stdout + result.stderr, found, said


@pytest.mark.slow
@pytest.mark.xdist_group("trials")  # one at a time: they need their budgets
def test_the_action_fails_on_a_slowdown_and_hands_out_its_files(
    project: Path, tmp_path: Path
) -> None:
    # It ends by itself, which makes its launches short.
    (project / "train.py").write_text(TRAIN.replace("100000", "100"))
    git(project.parent, "commit", "-qam", "ends")
    (project / "settings.py").write_text("PAUSE_S = 0.040\n")
    (project / "new.py").write_text("# not in the commit\n")
    before = state(project)
    code, log, outputs, summary = run_action(
        project, tmp_path, command="train.py --epochs 3", against="HEAD", budget="5m"
    )
    assert code == 1, log
    assert outputs["verdict"] == "slower"
    found = json.loads(Path(outputs["json"]).read_text())
    assert "FAIL" in summary.splitlines()[0]
    assert [line for line in summary.splitlines() if line.startswith("| step time ")]
    whole = Path(outputs["markdown"]).read_text()
    assert whole.startswith(summary.strip())
    assert len(whole) > len(summary) + 100, "the summary is the first screen"
    [annotation] = [line for line in log.splitlines() if line.startswith("::")]
    assert annotation.startswith("::error ") and "HEAD" in annotation
    assert found["answer"][0]["fact"] == "worse"
    jsonschema.validate(found, json.loads((ROOT / "docs" / "gate.schema.json").read_text()))
    assert found["verdict"] == "slower"
    assert found["metrics"][0]["ratio"]["estimate"] > 1.2
    assert found["metrics"][0]["ratio"]["low"] > 1.1
    suite = ElementTree.parse(outputs["junit"]).getroot()
    assert suite.tag == "testsuite"
    assert int(suite.attrib["tests"]) == len(suite.findall("testcase"))
    assert int(suite.attrib["failures"]) == len(suite.findall("testcase/failure")) >= 1
    assert state(project) == before


def test_the_action_says_what_was_wrong(project: Path, tmp_path: Path) -> None:
    code, log, outputs, _ = run_action(project, tmp_path, command="train.py", against="nowhere")
    assert (code, outputs) == (2, {})
    assert "'nowhere'" in log
    code, log, outputs, _ = run_action(
        project, tmp_path, command="train.py", against="HEAD", tolerance="step_time=fast"
    )
    assert (code, outputs) == (2, {})
    assert "'fast'" in log and "step_time=fast" in log


FAKE = """#!/bin/sh
if [ "$1 $2" = "-m torchdoctor" ]; then
  shift 3
  printf '%s\\n' "$0" "$@" > {said}
  exit 6
fi
exec {python} "$@"
"""


def asked(
    folder: Path, tmp_path: Path, event: dict[str, str] | None = None, **inputs: str
) -> list[str]:
    """What the action runs torchdoctor with: the Python, then the arguments."""
    said, tools = tmp_path / "said", tmp_path / "fake"
    said.unlink(missing_ok=True)
    tools.mkdir(exist_ok=True)
    for name in ("python", "other"):
        (tools / name).write_text(FAKE.format(said=said, python=sys.executable))
        (tools / name).chmod(0o755)
    event = {"PATH": f"{tools}:{os.environ['PATH']}", **(event or {})}
    code, log, outputs, _ = run_action(folder, tmp_path, event, **inputs)
    assert (code, outputs) == (6, {}), log
    return said.read_text().splitlines()


def words_after(arguments: list[str], option: str) -> str:
    return arguments[arguments.index(option) + 1]


def test_a_command_keeps_its_lines_and_quotes(project: Path, tmp_path: Path) -> None:
    """Only its first line was run, and quotes became parts of the words."""
    command = "train.py --name 'two words'\n  --steps 200 \\\n --path \"a b\"\n"
    found = asked(project, tmp_path, command=command, against="HEAD")
    expected = ["train.py", "--name", "two words", "--steps", "200", "--path", "a b"]
    assert found[found.index("--") + 1 :] == expected
    code, log, outputs, _ = run_action(project, tmp_path, command="train.py 'open", against="HEAD")
    assert (code, outputs) == (2, {})
    [annotation] = [line for line in log.splitlines() if line.startswith("::error ")]
    assert " command " in annotation, "the input is named"


def test_further_inputs_reach_the_command(project: Path, tmp_path: Path) -> None:
    other = str(tmp_path / "fake" / "other")
    inputs = {"baseline": "stored.json", "in-turns": "true", "python": other}
    found = asked(project, tmp_path, command="train.py", **inputs)
    assert found[0] == words_after(found, "--python") == other
    assert words_after(found, "--baseline") == "stored.json"
    assert "--sequential" in found and "--against" not in found
    found = asked(project, tmp_path, command="torchrun train.py", python=other)
    assert "--python" not in found and found[0] == other
    assert words_after(found, "--against") == "HEAD~1"
    assert "--sequential" not in found


def test_a_pull_request_is_compared_with_what_it_is_merged_into(
    project: Path, tmp_path: Path
) -> None:
    """The event's base may be older than the merge commit's, so others' changes were judged too."""
    root = project.parent

    def commit(name: str) -> str:
        (root / name).write_text(name)
        git(root, "add", "-A")
        git(root, "commit", "-qm", name)
        return git(root, "rev-parse", "HEAD").strip()

    old_base = git(root, "rev-parse", "HEAD").strip()
    git(root, "checkout", "-qb", "branch")
    head = commit("of the branch")
    git(root, "checkout", "-q", "main")
    new_base = commit("of somebody else")
    git(root, "checkout", "-q", "--detach", "main")
    git(root, "merge", "-q", "--no-ff", "-m", "merge", "branch")
    merged = git(root, "rev-parse", "HEAD").strip()
    event = {"GATE_BASE": old_base, "GITHUB_SHA": merged}
    against = words_after(asked(project, tmp_path, event, command="train.py"), "--against")
    assert git(root, "rev-parse", against).strip() == new_base
    # Who checks out the branch itself is compared with where it began.
    git(root, "checkout", "-q", head)
    event = {"GATE_BASE": new_base, "GITHUB_SHA": merged}
    against = words_after(asked(project, tmp_path, event, command="train.py"), "--against")
    assert against == old_base
    event = {"GATE_BASE": "0" * 40, "GITHUB_SHA": merged}
    code, log, _, _ = run_action(project, tmp_path, event, command="train.py")
    assert code == 2 and "fetch-depth 0" in log
