"""`torchdoctor gate` on real repositories: verdict, exit code, nothing of the user touched."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import commands
import pytest
import shown
from left_behind import left_in
from repository import TRAIN, git

from torchdoctor.gate.decision import state
from torchdoctor.gate.settings import METRICS, program_folder, tolerances
from torchdoctor.gate.versions import Reference, elsewhere
from torchdoctor.reports import gate as formats
from torchdoctor.schema import Environment, Interval, Workload, WorkloadRecord
from torchdoctor.schema.errors import UsageError
from torchdoctor.schema.figures import counted
from torchdoctor.schema.gate import GateMetric, GateReport

ROOT = Path(__file__).parent.parent.parent


def gate(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("GITHUB_")}
    return subprocess.run(
        [sys.executable, "-m", "torchdoctor.cli.front", "gate", "--quiet", *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        env={**clean, "PYTHONPATH": str(ROOT), **environment},
        check=False,
        timeout=600,
    )


@pytest.mark.slow
@pytest.mark.xdist_group("trials")  # one at a time: they need their budgets
def test_the_same_program_passes(project: Path) -> None:
    result = gate(project, "--output", "out", "--against", "main", "--tolerance", "step_time=30%",
                  "--steps", "30", "--budget", "4m", "train.py")  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    told = json.loads((project / "out" / "gate.json").read_text())
    assert told["verdict"] == "not slower"
    assert "no-file-differs" in {remark["fact"] for remark in told["remarks"]}


@pytest.mark.slow
def test_a_reference_that_cannot_run_is_not_decided(project: Path) -> None:
    (project / "settings.py").write_text("PAUSE = 1\n")
    git(project.parent, "commit", "-qam", "broken")
    (project / "settings.py").write_text("PAUSE_S = 0.010\n")
    result = gate(project, "--output", "out", "--against", "HEAD", "train.py")
    assert result.returncode == 6, result.stdout + result.stderr
    assert "HEAD" in result.stderr.splitlines()[0]
    # The program's own output was announced, and then left out.
    why = "ImportError: cannot import name 'PAUSE_S'"
    assert any(line.startswith(why) for line in result.stderr.splitlines())
    told = json.loads((project / "out" / "gate.json").read_text())
    assert told["verdict"] == "inconclusive" and why in told["answer"][0]["values"]["reason"]


@pytest.mark.slow
@pytest.mark.xdist_group("trials")  # one at a time: they need their budgets
def test_ctrl_c_ends_both_versions_also_the_one_that_stands_still(project: Path) -> None:
    running = subprocess.Popen(
        [sys.executable, "-m", "torchdoctor.cli.front", "gate", "--quiet", "--against", "HEAD",
         "--output", "out", "train.py"],
        cwd=project, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        launches = project / "out" / "launches"
        deadline = time.monotonic() + 300
        while not list(launches.glob("*/channel/go-2")) and time.monotonic() < deadline:
            assert running.poll() is None, running.communicate()
            time.sleep(0.1)
        running.send_signal(signal.SIGINT)
        said = running.communicate(timeout=600)[0]
    finally:
        running.kill()
    assert running.returncode == 130, said
    told = json.loads((project / "out" / "gate.json").read_text())
    assert told["verdict"] == "inconclusive" and told["interrupted"]
    assert left_in(project) == []


def usage(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    """As `gate`, for what starts no program."""
    return commands.torchdoctor("gate", "--quiet", *arguments, cwd=folder)


def bad(result: subprocess.CompletedProcess) -> str:
    assert result.returncode == 2, result.stdout + result.stderr
    assert result.stderr.startswith("torchdoctor: ")
    assert len(result.stderr.strip().splitlines()) == 1
    return result.stderr


def test_bad_input_is_one_sentence(project: Path, tmp_path: Path) -> None:
    assert "'nowhere'" in bad(usage(project, "train.py", "--against", "nowhere"))
    neither = bad(usage(project, "train.py"))
    assert "--against" in neither and "--baseline" in neither
    early = bad(usage(project, "train.py", "--against", "HEAD", "--budget", "5s"))
    assert "--against" in early and "--baseline" not in early, "it was given, to the program"
    both = bad(usage(project, "--against", "HEAD", "--baseline", "report.json", "train.py"))
    assert "--against" in both and "--baseline" in both
    unknown = bad(usage(project, "--against", "HEAD", "--tolerance", "speed=5%", "train.py"))
    assert "'speed'" in unknown and all(metric in unknown for metric in METRICS)
    assert "'lots'" in bad(
        usage(project, "--against", "HEAD", "--tolerance", "step_time=lots", "train.py")
    )
    (project / "new.py").write_text(TRAIN)
    added = bad(usage(project, "--against", "HEAD", "new.py"))
    assert "training/new.py" in added and "HEAD" in added
    outside = tmp_path / "elsewhere"
    outside.mkdir()
    (outside / "train.py").write_text(TRAIN)
    lost = bad(usage(outside, "--against", "HEAD", "train.py"))
    assert str(outside) in lost and "--baseline" in lost
    assert "no.json" in bad(usage(project, "--baseline", "no.json", "train.py"))


def test_tolerances_come_from_pyproject_and_the_command_line(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    assert tolerances(str(inner), None)["step_time"] == 0.02
    project = tmp_path / "pyproject.toml"
    project.write_text('[tool.torchdoctor.tolerance]\nstep_time = "5%"\npeak_memory = 0.2\n')
    assert tolerances(str(inner), None)["step_time"] == 0.05
    found = tolerances(str(inner), "step_time=7%, data_loader_share=0.1")
    assert (found["step_time"], found["samples_per_s"], found["peak_memory"]) == (0.07, 0.07, 0.2)
    assert found["data_loader_share"] == 0.1
    for value in ("-5%", "nan", "lots", "2000%"):
        with pytest.raises(UsageError, match=rf"'{value}'.*5%.*0\.05"):
            tolerances(str(inner), f"peak_memory={value}")
    with pytest.raises(UsageError, match="METRIC=SHARE"):
        tolerances(str(inner), "5%")
    for value in ("5", "1", "1.5"):
        with pytest.raises(UsageError, match=rf"'{value}'.*5%.*0\.05"):
            tolerances(str(inner), f"step_time={value}")
    assert tolerances(str(inner), "step_time=150%")["step_time"] == 1.5
    with pytest.raises(UsageError, match=r"'samples_per_s'.* step_time"):
        tolerances(str(inner), "samples_per_s=10%")
    for text in (
        "[tool.torchdoctor]\nspeed = 1\n", "[tool.torchdoctor]\ntolerance = 3\n", "[x\n",
        "[tool]\ntorchdoctor = 3\n", "tool = 3\n",
    ):  # fmt: skip
        project.write_text(text)
        with pytest.raises(UsageError, match=r"pyproject\.toml"):
            tolerances(str(inner), None)


def reference(folder: Path) -> Reference:
    script = folder / "train.py"
    workload = Workload(
        command=["python", "train.py", str(script)], cwd=str(folder), script=str(script)
    )
    return Reference(workload, "HEAD")


def test_the_reference_is_the_commit_with_todays_untracked_files(project: Path) -> None:
    (project / "settings.py").write_text("PAUSE_S = 1\n")
    (project / "new.py").write_text("")
    (project / "train.py").unlink()
    git(project.parent, "add", "training/new.py")
    old = reference(project)
    try:
        changes = old.contents()
        names = {Path(path).name: data for path, data in changes.items()}
        assert names == {
            "settings.py": b"PAUSE_S = 0.010\n", "new.py": None, "train.py": TRAIN.encode()
        }  # fmt: skip
        moved = elsewhere(old)[0].workload
        assert Path(moved.cwd, "data.txt").read_text() == "1 2 3"
        assert Path(moved.cwd, "settings.py").read_text() == "PAUSE_S = 0.010\n"
        assert moved.cwd.endswith("/training")
        assert moved.cwd.startswith(str(old.folder))
    finally:
        old.close()
    assert not old.folder.exists()


def sample(verdict: str) -> GateReport:
    return GateReport(
        workload=WorkloadRecord(command=["train.py"]),
        environment=Environment(),
        reference="main (0123456789)",
        verdict=verdict,
        sentence="100% <slow> | and\nmore",
        metrics=[
            GateMetric(
                name="step_time",
                reference=0.010,
                new=0.012,
                unit="s/sample",
                ratio=Interval(estimate=1.2, low=1.15, high=1.25),
                tolerance=0.02,
                verdict=state(verdict, Interval(estimate=1.2, low=1.15, high=1.25), 0.02),
            ),
            GateMetric(name="peak_memory", reference=2e9, new=2e9, unit="bytes", verdict="ok"),
        ],
        pairs=5,
        p_value=0.0001,
        doubts=["a doubt"],
    )


@pytest.mark.parametrize("verdict", ["slower", "not slower", "inconclusive"])
def test_formats_hold_whatever_the_sentence_holds(verdict: str) -> None:
    report = sample(verdict)
    suite = ElementTree.fromstring(formats.junit(report))
    cases = suite.findall("testcase")
    assert [case.attrib["name"] for case in cases] == ["step_time"]
    assert (cases[0].find("failure") is not None) == (verdict == "slower")
    assert (cases[0].find("skipped") is not None) == (verdict == "inconclusive")
    assert "\n" not in formats.annotation(report)
    assert "100%25" in formats.annotation(report)
    assert "1.200 (1.150-1.250)" in shown.markdown(report)
    text = shown.terminal(replace(report, blind_spot=0.19, measured="side by side"), width=80)
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "\x1b" not in text
    assert formats.mark(report) in text
    assert formats.warning(report) == ("perhaps slower" if verdict == "not slower" else "")
    [row] = [line.split() for line in text.splitlines() if "step time " in line and "10.0" in line]
    assert row[:2] == ["step", "time"]
    assert row[row.index("10.0") :][:8] == [
        "10.0",
        "ms",
        "12.0",
        "ms",
        "1.200",
        "(1.150-1.250)",
        "2",
        "%",
    ]
    assert "&#124;" in shown.markdown(report)


def test_a_ratio_whose_interval_says_nothing_is_no_figure() -> None:
    """Two pairs on a starved machine: "0.594" stood in the table, of 0.0008 to 416.7."""
    report, wide = sample("inconclusive"), Interval(estimate=0.594, low=0.0008, high=416.7)
    rows = [replace(report.metrics[0], ratio=wide), *report.metrics[1:]]
    report = replace(report, metrics=rows, mean_ratio=wide, measured="side by side")
    for text in (shown.terminal(report), shown.markdown(report), formats.junit(report)):
        assert "0.594" not in text
    assert " not known " in shown.terminal(report)


def test_a_row_without_a_tolerance_is_not_judged() -> None:
    """The share of waiting doubled between two equal versions, and stood there as "ok"."""
    report = sample("not slower")
    waiting = GateMetric(name="data_loader_share", reference=0.1, new=0.21, verdict="ok")
    rows = [formats.row(x) for x in (*report.metrics, waiting)]
    assert rows[-1][-1] == "not judged"
    judged = replace(waiting, tolerance=0.2)
    assert formats.row(judged)[-1] == "ok"


def test_a_pass_that_proves_little_is_a_warning_everywhere() -> None:
    """A slow-down by a third came out as "ok" in the table, in JUnit and in the annotation."""
    report = sample("not slower")
    assert formats.warning(report) == "perhaps slower"
    assert formats.annotation(report).startswith("::warning ")
    heading = shown.markdown(report).splitlines()[0]
    for text in (formats.annotation(report), heading):
        assert formats.mark(report) in text and formats.warning(report) in text
    assert "**Beware:**" in shown.markdown(report)
    suite = ElementTree.fromstring(formats.junit(report))
    assert suite.attrib["failures"] == suite.attrib["skipped"] == "0"
    said = suite.find("testcase/system-out")
    assert said is not None and said.text is not None
    assert said.text.startswith("perhaps slower") and "100% <slow>" in said.text
    seen = replace(report, metrics=[replace(report.metrics[0], verdict="ok")])
    assert formats.annotation(seen).startswith("::notice")
    assert "Beware" not in shown.markdown(seen) and formats.warning(seen) == ""
    assert counted(1, "pair") in " ".join(shown.terminal(replace(seen, pairs=1)).split())


def test_junit_counts_no_failure_that_it_does_not_hold() -> None:
    """Undecided with more memory it said failures="1", and no case had one."""
    report = sample("inconclusive")
    grown = replace(report.metrics[1], tolerance=0.1, verdict="worse")
    suite = ElementTree.fromstring(
        formats.junit(replace(report, metrics=[report.metrics[0], grown]))
    )
    assert int(suite.attrib["failures"]) == len(suite.findall("testcase/failure")) == 0
    assert int(suite.attrib["skipped"]) == len(suite.findall("testcase/skipped")) == 2
    said = suite.find("testcase/skipped").attrib["message"]
    kept = " ".join(report.sentence.split())
    assert said == kept, "a line break was dropped, and two words became one"


def test_pyproject_is_looked_for_from_the_programs_folder(tmp_path: Path) -> None:
    """A program of another folder was judged by the tolerances of the one it was started in."""
    inner, other = tmp_path / "project" / "training", tmp_path / "other"
    inner.mkdir(parents=True)
    other.mkdir()
    for folder, share in ((inner.parent, "5%"), (other, "9%")):
        text = f'[tool.torchdoctor.tolerance]\nstep_time = "{share}"\n'
        (folder / "pyproject.toml").write_text(text)
    started = Workload(command=["python", "-m", "x"], cwd=str(other))
    assert tolerances(program_folder(started), None)["step_time"] == 0.09
    started = replace(started, script=str(inner / "train.py"))
    assert tolerances(program_folder(started), None)["step_time"] == 0.05


def test_the_mean_step_stands_beside_the_typical_one() -> None:
    mean = Interval(estimate=1.037, low=0.929, high=1.158)
    report = replace(sample("not slower"), mean_ratio=mean)
    for text in (shown.terminal(report), shown.markdown(report)):
        assert "1.037 (0.929-1.158)" in " ".join(text.split())
    assert "1.037" not in shown.terminal(sample("not slower"))
