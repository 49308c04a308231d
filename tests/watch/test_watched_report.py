"""The report of a watched run, and its live view: while it runs, after its end, after a kill."""

import json
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import watch_simulation as simulation
import watched_folders
from commands import told
from test_recording import steps
from typer.testing import CliRunner

from torchdoctor.cli.front import app
from torchdoctor.reports.watched_facts import PHASE_NAMES, of_fact
from torchdoctor.schema.errors import UsageError
from torchdoctor.schema.figures import counted, duration
from torchdoctor.watch import end_report
from torchdoctor.watch.inside import layout
from torchdoctor.watch.recording import Process, Start, read_run
from torchdoctor.watch.remedies import Remedies, remedies
from torchdoctor.watch.summary import summary_of
from torchdoctor.watch.top import frame

NOW_S = simulation.START_UNIX_NS / 1e9
START = Start(
    host=simulation.HOST,
    pid=1,
    command=["python", "train.py", "--epochs", "3"],
    cwd="/",
    start_ns=simulation.START_NS,
    start_unix_ns=simulation.START_UNIX_NS,
)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of nine minutes whose loader becomes slower in the eighth, with its alert."""
    folder = tmp_path_factory.mktemp("run")
    run, _ = simulation.planted(simulation.PLANTS[0][2], 8)
    alerts = [alert for _, alert in simulation.replayed(folder / "watch", [run])]
    stem = next((folder / "watch").glob("node-*.steps")).stem
    lines = [json.dumps(asdict(alert)) + "\n" for alert in alerts]
    (folder / "watch" / "alerts-node.jsonl").write_text("".join(lines))
    process = replace(end(folder), rank=None)
    watched_folders.write_json(folder / "watch" / f"{stem}.json", process)
    watched_folders.write_json(folder / "watch" / "run-node-1.json", START)
    return folder


def end(folder: Path) -> Process:
    return read_run(folder).processes[0].process


def ends_s(folder: Path) -> float:
    return float(read_run(folder).processes[0].sensors["unix_ns"][-1]) / 1e9


def test_the_first_screen_says_the_cause_first_and_what_to_try(recorded: Path) -> None:
    text = end_report.rendered(recorded, "terminal", details=False)
    lines = text.splitlines()
    assert "train.py --epochs 3" in lines[0] and "node" in lines[0]
    cause = summary_of(read_run(recorded)).cause
    assert cause is not None and cause.fact.fact == "training-slower"
    assert lines[2].split() == cause.sentence.split()[: len(lines[2].split())]
    trying = ["torchdoctor", "run", "--from", str(recorded)[1:], "train.py", "--epochs", "3"]
    assert trying in told(text)  # the program ran in "/"
    for title in ("Where the time went", "Over time", "Slowest steps", "What happened"):
        assert title in lines
    assert len(lines) <= 48 and max(map(len, lines)) <= 100


def test_figures_of_the_summary_are_those_of_the_log(recorded: Path) -> None:
    run = read_run(recorded)
    summary, steps = summary_of(run, ends_s(recorded) + 1), run.processes[0].steps
    assert summary.status == "running" and summary.steps == steps.step[-1]
    assert sum(summary.phases_s.values()) == pytest.approx(steps.total_s.sum(), rel=1e-6)
    assert summary.periods[-1].step_s > 1.2 * summary.periods[0].step_s
    assert summary.drift is not None and summary.drift > 1.2
    assert summary.drift_cause is not None and summary.drift_cause.values["phase"] == "wait"
    assert summary.slowest[0].step_s == pytest.approx(steps.step_s.max(), rel=1e-6)
    assert summary.best_step_s is not None and summary.median_step_s is not None
    assert summary.best_step_s <= summary.median_step_s


def test_evaluations_and_checkpoints_have_their_price(tmp_path: Path) -> None:
    run = simulation.steady(1.02)
    watched_folders.write_process(
        tmp_path / "watch", Process(host="a", pid=1), run.steps, run.process
    )
    summary = summary_of(read_run(tmp_path))
    assert (summary.evaluations, summary.checkpoints) == (2, 1)
    text = end_report.rendered(tmp_path, "terminal")
    assert counted(2, "evaluation") in text and counted(1, "checkpoint") in text
    assert all(slow.phase != "evaluation" for slow in summary.slowest)


def test_it_says_whether_the_run_runs_ended_or_was_killed(recorded: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(recorded, tmp_path / "copy"))
    now_s = ends_s(folder)

    def ending(now_s: float) -> list[str]:
        return [x.fact for x in summary_of(read_run(folder), now_s).ending]

    assert ending(now_s + 5) == ["program-runs"] and ending(now_s + 300) == ["run-silent"]
    for exited, name in ((True, "program-ended"), (False, "program-broken-off")):
        ended = replace(START, end_unix_ns=int(now_s * 1e9), exited=exited)
        watched_folders.write_json(folder / "watch" / "run-node-1.json", ended)
        assert ending(now_s + 300) == [name]


def test_a_run_without_a_step_says_so(tmp_path: Path) -> None:
    watched_folders.write_start(tmp_path / "watch", START)
    summary = summary_of(read_run(tmp_path))
    assert summary.status == "no step" and summary.ending[-1].fact == "no-step"
    said = of_fact(summary.ending[-1]).split(".")[0]
    assert " ".join(end_report.rendered(tmp_path, "terminal").split()).count(said) == 1
    passed_s = 90
    lines = frame(read_run(tmp_path), NOW_S + passed_s, 80, 24, None)
    assert any(duration(passed_s) in line for line in lines[1:]), "how long it has been so"


@pytest.mark.parametrize(("count", "begin"), [(5_000, "5,000 steps "), (6_000, "At the pace of")])
def test_a_short_run_is_compared_with_no_best_part(tmp_path: Path, count: int, begin: str) -> None:
    watched_folders.write_process(tmp_path / "watch", Process(host="a", pid=1), steps(count))
    lines = end_report.rendered(tmp_path, "terminal", details=False).splitlines()
    assert lines[3].startswith(f"  {begin}") and "median 5.00 ms" in "".join(lines[3:5])


def test_what_may_be_saved_is_not_called_the_largest_cost(tmp_path: Path) -> None:
    """ "The largest cost is optimizer: 12 %" stood above a bar with 43 % forward; the command named
    a larger batch, which run tries on demand alone; and the rest of the step had no column.
    """
    rows = steps(6_000)
    rows["wait"], rows["forward"], rows["backward"] = 0, 0.0022, 0.0019
    rows["optimizer"], rows["other"] = 0.0006, 0.0007
    rows["checkpoint"][::1000] = 0.013
    watched_folders.write_process(tmp_path / "watch", Process(host="a", pid=1), rows)
    watched_folders.write_start(tmp_path / "watch", START)
    text = end_report.rendered(tmp_path, "terminal")
    summary = summary_of(read_run(tmp_path))
    assert summary.cause is not None and summary.cause.fact.fact == "most-to-save"
    assert summary.cause.fact.values["phase"] == "optimizer"
    assert summary.cause.fact.share == pytest.approx(0.11, abs=0.005)
    assert summary.cause.sentence in " ".join(text.split())
    assert "fused-optimizer" in summary.trying and "larger-batch" not in summary.trying
    [heads] = [line for line in text.splitlines() if "samples/s" in line and "backward" in line]
    assert heads.endswith(PHASE_NAMES["other"])
    assert summary.checkpoints == 6
    assert summary.phases_s["checkpoint"] == pytest.approx(6 * 0.013, rel=1e-3)
    [cost] = [line for line in text.splitlines() if counted(6, "checkpoint") in line]
    assert "13.0 ms" in cost and "78.0 ms" in cost


def test_every_format_is_written_and_the_page_has_its_curves(
    recorded: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(recorded, tmp_path / "copy"))
    end_report.write_end_report(folder / "watch")
    stored = json.loads((folder / "report.json").read_text())
    assert stored["kind"] == "watched run" and stored["alerts"][0]["cause"] == "loader-cpu-bound"
    assert json.loads(end_report.rendered(folder, "json"))["steps"] == stored["steps"]
    page = (folder / "report.html").read_text()
    for picture in ("steps", "time", "resources"):
        assert f'<figure id="{picture}">' in page
    assert end_report.rendered(folder, "markdown").startswith("### torchdoctor watch")
    assert (folder / "report.txt").read_text().startswith("torchdoctor watch · ")
    with pytest.raises(UsageError, match="choose text"):
        end_report.rendered(folder, "sarif")


def test_the_commands_find_the_newest_watched_run(
    recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()
    result = runner.invoke(app, ["top"])
    assert isinstance(result.exception, UsageError)
    assert "torchdoctor-runs" in str(result.exception)
    shutil.copytree(recorded, tmp_path / "torchdoctor-runs" / "a")
    for command in (["report"], ["report", "torchdoctor-runs/a"], ["report", "--details"]):
        result = runner.invoke(app, command)
        assert result.exit_code == 0 and result.output.startswith("torchdoctor watch")
    assert "was killed" in runner.invoke(app, ["top"]).output
    assert isinstance(runner.invoke(app, ["top", "nowhere"]).exception, UsageError)


def test_a_run_that_tried_fixes_is_no_watched_one(tmp_path: Path) -> None:
    """`top` said of it that it was killed in 1970: its status names a host and a process, too."""
    (tmp_path / "status.json").write_text('{"host": "node", "pid": 7, "state": "done"}')
    error = CliRunner().invoke(app, ["top", str(tmp_path)]).exception
    assert isinstance(error, UsageError) and "no watched run" in str(error)


@pytest.mark.parametrize("command", [["patch"], ["compare", "traces.json"]])
def test_what_needs_tried_fixes_says_what_to_do_with_a_watched_run(
    recorded: Path, tmp_path: Path, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "traces.json").write_text("{}")
    for name in (recorded, recorded / "watch"):
        result = CliRunner().invoke(app, [*command, str(name)])
        assert isinstance(result.exception, UsageError)
        assert f"torchdoctor report {recorded} " in str(result.exception)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 60), (44, 12)])
def test_the_live_view_fits_the_terminal(recorded: Path, width: int, height: int) -> None:
    lines = frame(read_run(recorded), ends_s(recorded), width, height, None)
    assert len(lines) < height and max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert "Step " in text and "samples/s" in text and "\x1b" not in text
    if height >= 24:
        assert "waiting for data" in text
        assert "CPU 6." in text and "Alerts (1)" in text and "slower since" in text


@pytest.mark.parametrize("width", [1, 20])
def test_a_terminal_that_is_too_narrow_is_no_defect_of_ours(recorded: Path, width: int) -> None:
    """A pseudo-terminal has no width unless somebody sets one."""
    assert frame(read_run(recorded), ends_s(recorded), width, 24, None)


def test_the_facts_of_a_stored_report_are_in_words_too(recorded: Path) -> None:
    report = json.loads(end_report.rendered(recorded, "json"))
    assert all(evidence["sentence"] for evidence in [*report["ending"], *report["step"]])


def test_the_time_left_is_that_of_an_epoch_like_those_before(tmp_path: Path) -> None:
    rows = steps(250)
    for step in (1, 100, 200):  # the loader's pass begins with the last step of the one before
        rows["flags"][step - 1] = layout.PASS_BEGAN
    folder = tmp_path / "watch"
    watched_folders.write_process(folder, Process(host="a", pid=1), rows)
    lines = frame(read_run(tmp_path), 0, 80, 24, None)
    assert any("Step 250 " in line and " 50 of 100 " in line for line in lines)
    assert max(map(len, lines)) <= 80
    rows["flags"][199], rows["flags"][200] = 0, layout.PASS_BEGAN  # or with the next step
    watched_folders.write_process(folder, Process(host="a", pid=1), rows)
    assert " 49 of 101 " in "\n".join(frame(read_run(tmp_path), 0, 80, 24, None))
    rows["flags"][200], rows["flags"][209] = 0, layout.PASS_BEGAN
    watched_folders.write_process(folder, Process(host="a", pid=1), rows)
    assert "epoch" not in "\n".join(frame(read_run(tmp_path), 0, 80, 24, None))


def test_the_live_view_shows_ranks_as_a_heat_row(tmp_path: Path) -> None:
    base = simulation.steady(2 / 60)
    for part in simulation.ranks_of(base, slow=2, step=0):
        process = Process(host="a", pid=10 + (part.rank or 0), rank=part.rank, world_size=4)
        steps = part.steps[:50] if part.rank == 3 else part.steps
        watched_folders.write_process(tmp_path, process, steps, part.process)
    text = "\n".join(frame(read_run(tmp_path), NOW_S, 80, 24, None))
    [slowest] = [line for line in text.splitlines() if "rank 2" in line]
    assert " 1.3" in slowest and counted(1, "rank") in slowest
    assert "··█?" in text


@pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")
def test_the_live_view_in_a_terminal_follows_its_size_and_leaves_by_q(tmp_path: Path) -> None:
    """A writer keeps the run alive; the terminal is tmux's."""
    run = simulation.steady(2 / 60)
    moved = int(time.time() * 1e9) - simulation.START_UNIX_NS - 120 * 10**9
    run.process["unix_ns"] += moved + 10**12  # alive for as long as this test may take
    watched_folders.write_process(
        tmp_path / "watch", Process(host="a", pid=1), run.steps, run.process
    )
    session = f"top-{tmp_path.name}-{time.time_ns()}"

    def tmux(*words: str) -> str:
        return subprocess.run(["tmux", *words], capture_output=True, text=True, check=True).stdout

    def shown(text: str) -> str:
        until = time.monotonic() + 60
        while text not in (screen := tmux("capture-pane", "-p", "-t", session)):
            assert time.monotonic() < until, screen
            time.sleep(0.2)
        return screen

    tmux("new-session", "-d", "-s", session, "-x", "80", "-y", "24")
    try:
        command = f"{sys.executable} -m torchdoctor top {tmp_path}; echo left with $?"
        tmux("send-keys", "-t", session, command, "Enter")
        assert "q leaves" in shown("waiting for data").splitlines()[0]
        tmux("resize-window", "-t", session, "-x", "50", "-y", "10")
        time.sleep(1.5)
        assert len(shown("Step").splitlines()) <= 10
        tmux("send-keys", "-t", session, "q")
        assert "q leaves" not in shown("left with 0")
    finally:
        tmux("kill-session", "-t", session)


def shares(**seconds: float) -> dict[str, float]:
    """A run of a hundred steps whose phases took so long in all."""
    return {name: seconds.get(name, 0.0) for name in layout.PHASES}


def may_help(phases: dict[str, float], largest: str, **process: object) -> Remedies:
    given = {"host": "node", "pid": 1, "step_kind": "loader", "num_workers": 0, **process}
    return remedies(START, Process(**given), phases, 100, largest)  # type: ignore[arg-type]


def test_what_may_help_is_bounded_by_the_time_of_what_it_works_on() -> None:
    found = may_help(shares(wait=1.0, forward=1.0, backward=2.0), "wait", device="cuda:0")
    assert "loader-workers" in found.fixes
    assert found.most is not None and 1.3 < found.most.speedup < 1.5


def test_what_works_on_nothing_that_was_watched_is_not_named() -> None:
    """A collector that never ran was to be frozen, and loaders that nobody waits for changed."""
    idle = may_help(shares(forward=1.0, backward=2.0, optimizer=1.0), "gc")
    assert "gc-freeze" not in idle.fixes
    paused = may_help(shares(forward=1.0, backward=2.0, gc=1.0), "gc")
    assert "gc-freeze" in paused.fixes
    none = may_help(shares(forward=1.0, backward=2.0), "wait", device="cuda:0")
    assert not {"loader-workers", "prefetch-factor", "decoded-cache"} & set(none.fixes)


def test_what_is_for_programs_that_infer_is_not_named_for_a_training() -> None:
    """`inference-mode` was, and its bound said that forward, 2 % of the time, may gain 27x."""
    for largest in ("wait", "forward", "backward", "other"):
        phases = shares(wait=1.0, forward=0.5, backward=0.5, other=9.0)
        named = may_help(phases, largest).fixes
        assert not {"inference-mode", "eval-mode", "fold-batch-norm", "keep-model"} & set(named)
        assert not {"batched-inference", "bfloat16-weights", "key-value-cache"} & set(named)


def test_what_only_a_finding_calls_for_is_not_named() -> None:
    """A training in float32 was told that its arithmetic in float16 gains 40x at most."""
    found = may_help(shares(forward=4.0, backward=5.0, optimizer=1.0), "backward")
    assert "float32-on-cpu" not in found.fixes and "sparse-embedding" not in found.fixes
    assert found.most is None, "whether there is anything to work on was not seen"


def test_of_copies_whose_kind_is_not_known_no_figure_is_told() -> None:
    assert may_help(shares(copy=2.0, forward=1.0), "copy", device="cuda:0").most is None
