"""Bad input and programs that fail: one clear sentence, the documented exit code, nothing lost."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import commands
import jsonschema
import pytest
from left_behind import left_in
from light_torch import LIGHT, STARTS_LATE
from slow_loader import SLOW_LOADER

from torchdoctor.cli.limits import limit_reached

ROOT = Path(__file__).parent.parent
# Where its budget is minutes, observing goes on for 15 s: the program ends that launch by itself.
LOOP = """
import os, sys, time, torch
{light}torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
{optimizer}
for step in range(500 if "-observe" in os.environ["TORCHDOCTOR_PLAN"] else 100000):
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    {update}
    time.sleep(0.002)
    {body}
"""
SGD = (
    "optimizer = torch.optim.SGD(model.parameters(), lr=0.01)",
    "optimizer.step(); optimizer.zero_grad()",
)
BY_HAND = (
    "",
    "[p.data.sub_(p.grad, alpha=0.01) for p in model.parameters()]; model.zero_grad()",
)


def script(
    folder: Path,
    body: str = "pass",
    source: str | None = None,
    updates: tuple[str, str] = BY_HAND,
) -> str:
    optimizer, update = updates
    loop = LOOP.format(light=LIGHT, body=body, optimizer=optimizer, update=update)
    path = folder / "train.py"
    path.write_text(loop if source is None else source)
    return path.name


OPTIONS = ("--quiet", "--no-fixes", "--budget", "5m", "--output", "out")


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    return usage(folder, "run", *OPTIONS, *arguments)


def usage(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    """`torchdoctor` in this process."""
    return commands.torchdoctor(*arguments, cwd=folder)


def says_one_sentence(result: subprocess.CompletedProcess, code: int) -> str:
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr
    assert result.stderr.startswith("torchdoctor: ")
    return result.stderr


def test_help_answers_without_torch(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "torchdoctor.cli.front", "run", "--help"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    modules = {line.rsplit("|", 1)[-1].strip() for line in result.stderr.splitlines()}
    assert "torchdoctor.cli.front" in result.stderr or modules
    assert not modules & {"torch", "numpy", "scipy", "msgspec", "libcst", "psutil"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["missing.py"],
        ["."],
        ["--budget", "soon", "train.py"],
        ["--fixes", "no-such-fix", "train.py"],
        ["--fixes=", "train.py"],
        ["--step-on", "moon", "train.py"],
        ["--output", "report.json", "train.py"],
        ["no-such-command-at-all"],
        ["a" * 5000 + ".py"],
    ],
)
def test_bad_command_line_is_a_usage_error(tmp_path: Path, arguments: list[str]) -> None:
    script(tmp_path)
    says_one_sentence(usage(tmp_path, "run", *arguments), 2)


def test_no_time_at_all_is_said_to_be_none(tmp_path: Path) -> None:
    for budget in ("0s", "-2m"):
        result = usage(tmp_path, "run", f"--budget={budget}", script(tmp_path))
        said = says_one_sentence(result, 2)
        assert f"'{budget}'" in said and " 0 s" in said, "what is wrong with it"
    for budget in ("1e9", "9999h", "inf"):
        result = usage(tmp_path, "run", f"--budget={budget}", script(tmp_path))
        said = says_one_sentence(result, 2)
        assert f"'{budget}'" in said and "30 days" in said, "the longest"


def test_a_script_in_place_of_a_command_is_answered_with_the_command(tmp_path: Path) -> None:
    result = usage(tmp_path, script(tmp_path))
    assert "torchdoctor run train.py " in says_one_sentence(result, 2)


def test_a_seed_that_no_library_takes_is_a_usage_error(tmp_path: Path) -> None:
    seed = ("--seed", "99999999999999999999999999")
    result = usage(tmp_path, "run", *seed, script(tmp_path))
    assert result.returncode == 2
    assert "Traceback" not in result.stderr


def test_explain_takes_one_of_its_questions(tmp_path: Path) -> None:
    says_one_sentence(usage(tmp_path, "explain", "tf32", "--all"), 2)


def test_a_file_that_is_not_python_is_a_usage_error(tmp_path: Path) -> None:
    says_one_sentence(usage(tmp_path, "run", script(tmp_path, source="this is ( no Python\n")), 2)


@pytest.mark.parametrize("module", ["typer", "psutil"])  # of the command line, of a command
def test_ctrl_c_while_it_is_still_being_loaded_is_one_line(tmp_path: Path, module: str) -> None:
    (tmp_path / f"{module}.py").write_text("raise KeyboardInterrupt")
    result = subprocess.run(
        [sys.executable, "-m", "torchdoctor", "run", script(tmp_path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"},
        check=False,
    )
    assert (result.returncode, result.stderr) == (130, "torchdoctor: interrupted.\n")


def test_isolated_python_is_said(tmp_path: Path) -> None:
    result = usage(tmp_path, "run", "--", sys.executable, "-I", script(tmp_path))
    assert "-I" in says_one_sentence(result, 2)


def test_crash_at_step_four_shows_the_programs_own_traceback(tmp_path: Path) -> None:
    result = run(tmp_path, script(tmp_path, "if step == 3: raise ValueError('bad label')"))
    assert result.returncode == 3
    assert "ValueError: bad label" in result.stderr
    assert "train.py" in result.stderr
    assert "torchdoctor/probe" not in result.stderr


@pytest.mark.parametrize(
    ("at", "end", "code", "last"),
    [
        (150, "raise ValueError('bad label')", 1, "ValueError: bad label"),
        # Of a killed process, the events since the probe last wrote them are lost.
        (400, "__import__('os').kill(__import__('os').getpid(), 9)", -9, ""),
    ],
)
def test_a_failure_after_enough_steps_is_not_hidden_by_the_report(
    tmp_path: Path, at: int, end: str, code: int, last: str
) -> None:
    name = script(tmp_path, f"if step == {at}: {end}")
    result = run(tmp_path, name)
    assert result.returncode == 3, result.stderr
    assert last in result.stderr and result.stderr.startswith("torchdoctor: ")
    assert ("Traceback" in result.stderr) == (code == 1)
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["failure"]["exit_code"] == code
    assert 60 <= report["failure"]["steps"] <= at
    besides = [evidence["fact"] for evidence in report["failure"]["besides"]]
    assert besides == (["maybe-killed-for-memory"] if code < 0 else [])
    assert report["baseline"]["step_time_s"]["steps"] > 30
    counts = report["steps"]["evidence"]["values"]["counts"]
    assert counts["forward"] - counts["computed"] in (0, 1), "the first forward is seen too"
    how = "killed by signal 9" if code < 0 else f"exit code {code}"
    markdown = usage(tmp_path, "report", "out/report.json", "--format", "markdown")
    for text in (result.stdout, (tmp_path / "out" / "report.html").read_text(), markdown.stdout):
        top = " ".join(text.partition("Why")[0].split())
        assert how in top and last in top


def test_a_program_without_training_steps_says_what_to_do(tmp_path: Path) -> None:
    source = "import torch\nmodel = torch.nn.Linear(2, 2)\nmodel(torch.ones(1, 2))\n"
    message = says_one_sentence(run(tmp_path, script(tmp_path, source=source)), 4)
    assert "torchdoctor.step()" in message


def test_no_path_no_closed_stream_and_no_end_by_os_exit_costs_the_report(tmp_path: Path) -> None:
    """The folder's name is no UTF-8, our standard streams are closed, no exit handler runs."""
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/b\xff"))
    try:
        folder.mkdir()
    except OSError:
        folder = tmp_path  # this file system takes UTF-8 names only
    name = script(folder, "if step == 99: __import__('os')._exit(0)")
    words = [sys.executable, "-m", "torchdoctor.cli.front", "run", "--no-fixes", "--budget", "60s"]
    shell = ["sh", "-c", 'exec "$@" >&- 2>&-', "sh", *words, "--output", "out", name]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    code = subprocess.run(shell, cwd=folder, env=environment, check=False).returncode
    assert code == 0
    report = json.loads((folder / "out" / "report.json").read_text())
    assert report["steps"]["total_steps_seen"] >= 98


@pytest.mark.skipif(sys.platform != "linux", reason="limits as Linux has them")
def test_too_little_address_space_is_no_defect_and_no_interrupt(tmp_path: Path) -> None:
    """NumPy's OpenBLAS ended us with exit code 1 ("gate: slower"), or by a SIGINT."""
    words = [sys.executable, "-m", "torchdoctor.cli.front", *("run", *OPTIONS), script(tmp_path)]
    ended = subprocess.run(
        ["sh", "-c", 'ulimit -v 150000; exec "$@"', "sh", *words],
        cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "2"},
    )  # fmt: skip
    assert ended.returncode == 2, ended.stderr
    assert "Traceback" not in ended.stderr
    assert "ulimit" in ended.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("error", "option"),
    [
        (MemoryError(), "ulimit -v"),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), "ulimit -u"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "ulimit -v"),
        (OSError(errno.EMFILE, "Too many open files"), "ulimit -n"),
        (RuntimeError("can't start new thread"), "ulimit -u"),
        (ImportError("x.so: failed to map segment from shared object"), "ulimit -v"),
    ],
)
def test_limits_are_told_from_defects(error: Exception, option: str) -> None:
    assert option in (limit_reached(error) or "")


def test_what_is_no_limit_is_none() -> None:
    for error in (KeyboardInterrupt(), OSError(errno.EIO, "Input/output error"), KeyError("x")):
        assert limit_reached(error) is None


def test_a_program_that_ends_in_the_profiler_window_does_not_crash_in_it(tmp_path: Path) -> None:
    result = run(tmp_path, "--budget", "60s", script(tmp_path, "if step == 5: break"))
    assert result.returncode == 0, result.stderr
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert not [doubt for doubt in report["doubts"] if "signal" in doubt], report["doubts"]
    assert report["trace"]["operators"]
    assert any("could be measured" in doubt for doubt in report["doubts"]), report["doubts"]


def test_the_budget_bounds_a_program_without_steps(tmp_path: Path) -> None:
    name = script(tmp_path, source="import time, torch\nwhile True: time.sleep(0.1)\n")
    result = usage(tmp_path, "run", "--quiet", "--budget", "6s", "--output", "out", name)
    message = says_one_sentence(result, 5)
    assert "--budget" in message and ".)" not in message


def test_an_option_after_the_script_is_recognised(tmp_path: Path) -> None:
    source = "import argparse\nargparse.ArgumentParser().parse_args()\n"
    result = run(tmp_path, script(tmp_path, source=source), "--budget", "60s")
    assert result.returncode == 3
    [ours] = [line for line in result.stderr.splitlines() if line.startswith("torchdoctor: ")]
    assert "--budget" in ours and "torchdoctor's own" in ours


def test_a_program_that_prints_nothing_is_not_quoted(tmp_path: Path) -> None:
    result = run(tmp_path, script(tmp_path, source="import sys; sys.exit(7)\n"))
    assert result.returncode == 3
    assert "It printed nothing." in result.stderr and "exit code 7" in result.stderr


def test_deeply_nested_json_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "deep.json").write_text("[" * 200000)
    for command in ("report", "patch", "compare"):
        more = ["deep.json"] if command == "compare" else []
        says_one_sentence(usage(tmp_path, command, "deep.json", *more), 2)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_output_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [sys.executable, "-m", "torchdoctor.cli.front", "explain", "--all"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            check=False,
        )
    assert result.returncode == 2
    assert "No space left" in result.stderr and "Traceback" not in result.stderr


def test_a_program_that_hangs_times_out_and_is_gone(tmp_path: Path) -> None:
    source = (
        "import signal, time, torch\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "while True:\n    try:\n        time.sleep(600)\n    except BaseException:\n        pass\n"
    )
    name = script(tmp_path, source=source)
    result = run(tmp_path, "--timeout", "20s", name)
    assert result.returncode == 5, result.stderr
    # It was said that python -I might keep the probe out, of a program that evaluated for minutes.
    assert "python -I" not in result.stderr and "imported torch" in result.stderr
    assert "evaluates first" in result.stderr
    assert left_in(tmp_path) == []


@pytest.mark.slow
def test_report_is_valid_and_the_users_files_stay_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("step,loss\n")
    body = "open('log.csv', 'a').write('x'); step % 9 or torch.save(model.state_dict(), 'model.pt')"
    name = script(tmp_path, body, updates=SGD)
    text = (tmp_path / name).read_text().replace("range(500 if", "range(100000 if")
    (tmp_path / name).write_text(STARTS_LATE + text)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    result = run(tmp_path, "--budget", "60s", name)
    assert result.returncode == 0, result.stderr
    after = {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()}
    assert after == before
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    schema = json.loads((ROOT / "docs" / "report.schema.json").read_text())
    jsonschema.validate(report, schema)
    assert report["diagnosis"]["path"]
    assert {"name": "optimizer", "value": "SGD"} in report["settings"]
    assert report["baseline"]["step_time_s"]["median"] > 0.002
    shares = [x for x in report["baseline"]["shares"].values() if x is not None]
    assert sum(shares) == pytest.approx(1.0, abs=0.01)
    for form in ("terminal", "markdown", "html", "json", "sarif"):
        shown = usage(tmp_path, "report", "out/report.json", "--format", form)
        assert shown.returncode == 0, shown.stderr
        assert shown.stdout


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_keeps_what_was_measured(tmp_path: Path, sent: signal.Signals) -> None:
    rows = '800 if "-observe" in __import__("os").environ["TORCHDOCTOR_PLAN"] else 100000'
    name = script(tmp_path, source=SLOW_LOADER.replace("100000", rows))
    words = [sys.executable, "-m", "torchdoctor.cli.front", "run", "--fixes", "loader-workers"]
    process = subprocess.Popen(
        [*words, "--output", "out", name],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Whoever runs the tests may ignore it (nohup), and what is ignored stays so.
        preexec_fn=lambda: signal.signal(sent, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 300
    launches = 3 if sent == signal.SIGINT else 2
    while len(list(tmp_path.glob("out/launches/*"))) < launches and time.monotonic() < deadline:
        time.sleep(0.2)
    process.send_signal(sent)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 130, errors
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["interrupted"] is True
    assert report["steps"]["steps"] > 0
    assert left_in(tmp_path) == []


def test_a_run_overwrites_no_program(tmp_path: Path) -> None:
    name = script(tmp_path)
    before = (tmp_path / name).read_text()
    result = usage(tmp_path, "run", "--output", name, name)
    assert result.returncode == 2, result.stderr
    assert name in result.stderr and "--output" in result.stderr
    assert (tmp_path / name).read_text() == before
