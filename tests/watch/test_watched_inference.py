"""Programs that infer: found as `run` finds them, and told in their own words."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import watched_folders
from test_recording import steps
from test_stepping import EVAL, MS, Program

from torchdoctor.advice import catalogue
from torchdoctor.probe import step_log
from torchdoctor.watch import end_report
from torchdoctor.watch.alerts import Alerts
from torchdoctor.watch.inside import event_rows, inferring, layout, stepping
from torchdoctor.watch.recording import Process, Start, read_run
from torchdoctor.watch.remedies import remedies
from torchdoctor.watch.summary import summary_of

START = Start(host="a", pid=1, command=["python", "infer.py"], cwd="/x", end_unix_ns=2 * 10**18)
CALLED = Process(
    host="a", pid=1, start_unix_ns=10**18, kind="inference", step_kind="forward", exited=True
)
LOOPS = {
    "many calls": "for _ in range(12_000):\n    model(torch.ones(8, 4))\n",
    "calls": "for _ in range(50):\n    model(torch.ones(8, 4))\n",
    "calls beside an optimizer": (
        "optimizer = torch.optim.AdamW(model.parameters())\n"
        "optimizer.load_state_dict(optimizer.state_dict())\n"
        "for _ in range(50):\n    model(torch.ones(8, 4))\n"
    ),
    "calls of a part": (
        "whole = torch.nn.ModuleList([model])\n"
        "for _ in range(50):\n    whole[0](torch.ones(8, 4))\n"
    ),
    "calls that differentiate": (
        "class Forces(torch.nn.Linear):\n"
        "    def forward(self, x):\n"
        "        with torch.enable_grad():\n"
        "            x = x.clone().requires_grad_()\n"
        "            return torch.autograd.grad(super().forward(x).sum(), x, create_graph=True)\n"
        "model = Forces(4, 2).eval()\n"
        "for _ in range(50):\n    model(torch.ones(8, 4))\n"
    ),
    "batches": (
        "data = torch.utils.data.TensorDataset(torch.ones(400, 4))\n"
        "for (x,) in torch.utils.data.DataLoader(data, batch_size=8):\n    model(x)\n"
    ),
}


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Program:
    return Program(monkeypatch)


def test_a_plain_loop_is_told_by_the_calls_of_its_model(program: Program) -> None:
    for _ in range(40):
        program.forward(EVAL)
    assert program.log.infer() and program.found == [("forward", 0)]
    program.forward(EVAL)
    assert len(program.steps()) == 41


def test_a_loop_over_a_loader_is_told_by_its_batches(program: Program) -> None:
    for _ in range(10):
        program.fetch()
        program.forward(EVAL)
        program.forward(EVAL)
    assert program.log.infer() and program.found == [("loader", 0)]
    for _ in range(5):
        program.fetch()
        program.forward(EVAL)
    found = program.steps()
    assert len(found) == 15 and np.allclose(found.samples, 32)


def test_an_entry_point_is_waited_for_and_holds_its_forwards(program: Program) -> None:
    def generate() -> None:
        program.does(step_log.ENTRY_BEGIN, 3, 4)
        for _ in range(8):
            program.forward(EVAL)
        program.does(step_log.ENTRY_END, 3)

    generate()
    assert not program.log.infer(), "eight tokens are no eight answers"
    generate()
    generate()
    assert program.log.infer() and program.found == [("entry", 3)]
    generate()
    found = program.steps()
    assert len(found) == 4 and np.allclose(found.samples, 4)


def test_each_call_has_the_samples_of_its_own_input(program: Program) -> None:
    """Where calls known and unknown took turns, one had the samples of two, and one had none."""

    def call(rows: int, new_shape: bool = False) -> None:
        program.now += MS
        program.log.forward(0, EVAL, 3 * rows, rows, new_shape)
        program.does(step_log.FORWARD_END)

    for rows in range(1, 41):
        call(rows)
    assert program.log.infer()
    for rows in range(41, 401):
        call(rows, new_shape=rows % 50 == 0)
        if rows % 37 == 0:
            program.log.add_at(step_log.GC_BEGIN, 0, program.now)
            program.now += 20 * MS
            program.log.add_at(step_log.GC_END, 0, program.now)
        if rows % 90 == 0:
            program.log.work()
    found = program.steps()
    assert found.samples.tolist() == list(range(1, 401))
    assert found.elements.tolist() == list(range(3, 1203, 3))
    assert np.isclose(found.total_s.sum(), (program.now - found.start_ns[0]) / 1e9)


def test_a_training_that_began_with_an_evaluation_is_a_training(program: Program) -> None:
    for _ in range(40):
        program.forward(EVAL)
    assert program.log.infer()
    program.train(40)
    program.steps()
    assert program.found == [("forward", 0), ("loader", 0)] and not program.log.infers


def test_a_gradient_within_the_call_of_a_model_is_a_part_of_it(program: Program) -> None:
    """Nothing was shown of a model of physics: its forces are gradients, and began all anew."""
    partial = step_log.GRADIENT_CALLS.index("create_graph")
    learning = []
    program.log.on_learning = learning.append

    def call() -> None:
        program.now += MS
        program.log.forward(0, EVAL, 96, 32)
        program.does(step_log.GRADIENT_BEGIN, partial)
        program.does(step_log.GRADIENT_END, partial)
        program.does(step_log.FORWARD_END)

    for _ in range(40):
        call()
    assert program.log.infer() and program.found == [("forward", 0)]
    for _ in range(40):
        call()
    assert len(program.steps()) == 80
    assert program.log.infers and not learning


def test_brief_calls_before_the_begin_of_a_training_are_all_kept(program: Program) -> None:
    """The last ones share a row, which was lost where the program ended before a step of it."""
    for call in range(2_000):
        program.does(step_log.FORWARD_BEGIN, ms=0.005)
        program.does(step_log.FORWARD_END, ms=0.005)
        if call == 1_000:
            assert program.log.infer()
    program.backward()
    steps = program.steps()
    assert steps.steps.sum() == program.log.step == 1_999  # what learned began with the last one


def test_a_training_has_nothing_of_the_evaluation_before_it(program: Program) -> None:
    """The samples and the new shape of the last call were those of the first step as well."""
    for _ in range(40):
        program.forward(EVAL)
    assert program.log.infer()
    program.log.work()
    program.now += MS
    program.log.forward(0, EVAL, 9_600, 3_200, is_new=True)
    program.does(step_log.FORWARD_END)
    program.log.exchanged(program.now, False)
    program.backward()
    program.update()
    program.train(40, loader=None)
    found = program.steps()
    assert program.found == [("forward", 0), ("optimizer", 0)]
    first, second = np.flatnonzero(found.step > found.step[-1] - 41)[:2]
    assert found.rows["samples"][first] == found.rows["elements"][first] == 0
    assert found.rows["entry"][first] == 0 and not found.has(layout.NEW_INPUT)[first]
    assert found.phases_s[first, layout.FORWARD] == 0
    assert np.isclose(found.total_s[first], (found.start_ns[second] - found.start_ns[first]) / 1e9)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_program_that_infers_is_watched_without_edits(tmp_path: Path, loop: str) -> None:
    model = "import torch\nmodel = torch.nn.Linear(4, 2).eval()\ntorch.set_grad_enabled(False)\n"
    (tmp_path / "infer.py").write_text(model + LOOPS[loop])
    run = tmp_path / "run"
    words = ["-m", "torchdoctor", "watch", "--output", str(run), "infer.py"]
    subprocess.run([sys.executable, *words], cwd=tmp_path, check=True, timeout=300)
    told = summary_of(read_run(run))
    kind, unit = ("loader", "batch") if loop == "batches" else ("forward", "call")
    (log,) = read_run(run).processes
    assert log.process.step_kind == kind
    assert [evidence.fact for evidence in told.step] == [f"step-{kind}", "no-gradient"]
    name = "Forces" if loop == "calls that differentiate" else "Linear"
    assert told.step[0].values["name"] == (None if kind == "loader" else name)
    assert (told.step[0].location is None) == (kind != "loader")
    count = 12_000 if loop == "many calls" else 50  # more than are held until it is decided
    assert (told.program, told.unit, told.steps) == ("inference", unit, count)


def test_an_optimizer_that_never_steps_is_waited_for_no_longer_than_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The service whose checkpoint has an optimizer showed nothing while it ran."""
    now_s = 100
    monkeypatch.setattr(inferring, "perf_counter_ns", lambda: now_s * 10**9)
    watch = SimpleNamespace(log=SimpleNamespace(infer=lambda: True), optimizers_made={1})
    inference = inferring.Inference(watch)
    decided_s = None
    for now_s in range(100, 200):
        inference.called()
        if inference.on and decided_s is None:
            decided_s = now_s - 100
    assert decided_s is not None and 30 <= decided_s <= 60


def test_the_report_speaks_of_calls_and_of_no_training(tmp_path: Path) -> None:
    rows = steps(6_000)
    rows["backward"] = rows["optimizer"] = rows["evaluation"] = rows["checkpoint"] = 0
    watched_folders.write_process(tmp_path / "watch", CALLED, rows)
    watched_folders.write_start(tmp_path / "watch", START)
    for form in ("terminal", "html", "markdown"):
        text = end_report.rendered(tmp_path, form)
        assert "calls" in text
        assert not [word for word in ("training", " step ", "a step") if word in text.lower()]
    stored = json.loads(end_report.rendered(tmp_path, "json"))
    assert (stored["program"], stored["unit"]) == ("inference", "call")


def test_no_fix_for_trainings_is_named(tmp_path: Path) -> None:
    """`set-to-none` was advised to a program that computes no gradient."""
    phases = {"wait": 1.0, "forward": 3.0, "other": 2.0}
    for largest in phases:
        fixes = remedies(START, CALLED, phases, 100, largest).fixes
        for ident in fixes:
            assert not {"backward_s", "optimizer_s"} & set(catalogue.fixes()[ident].phases)


def test_helpers_that_infer_are_no_steps_of_the_training(tmp_path: Path) -> None:
    trainer = Process(host="a", pid=2, start_unix_ns=10**18 - 10**9, step_kind="loader")
    watched_folders.write_process(tmp_path / "watch", trainer, steps(100))
    watched_folders.write_process(tmp_path / "watch", CALLED, steps(300))
    watched_folders.write_start(tmp_path / "watch", START)
    assert summary_of(read_run(tmp_path)).steps == 100


def test_a_slower_inference_is_told_by_its_calls(tmp_path: Path) -> None:
    rows = steps(80_000)
    for name in ("backward", "optimizer", "evaluation", "checkpoint"):
        rows[name] = 0
    rows["forward"][50_000:] *= 3
    total = sum(rows[name].astype(float) for name in ("wait", "copy", "forward", "gc", "other"))
    rows["start_ns"][1:] = rows["start_ns"][0] + (np.cumsum(total)[:-1] * 1e9).astype(np.int64)
    watched_folders.write_process(tmp_path, CALLED, rows)
    told = [alert.sentence for alert in Alerts(tmp_path).new()]
    assert any(text.startswith("Inference is ") and " since call " in text for text in told)
    assert not [text for text in told if "raining" in text or "step" in text]


@pytest.mark.slow
def test_none_of_many_brief_calls_is_lost(tmp_path: Path) -> None:
    """More than 20,000 a second had no row, as so many did not fit into what waits for the disk."""
    (tmp_path / "infer.py").write_text(
        "import torch\n"
        "class Same(torch.nn.Linear):\n"
        "    def forward(self, x):\n"
        "        return x\n"
        "model, x = Same(4, 4).eval(), torch.ones(8, 4)\n"
        "for _ in range(300_000):\n"
        "    model(x)\n"
    )
    words = ["-m", "torchdoctor", "watch", "--output", "run", "infer.py"]
    subprocess.run([sys.executable, *words], cwd=tmp_path, check=True, timeout=300)
    run = read_run(tmp_path / "run")
    steps = run.processes[0].steps
    assert steps.steps.sum() == steps.step[-1] == 300_000
    assert (steps.samples * steps.steps).sum() == 8 * 300_000
    assert [fact.fact for fact in summary_of(run).ending] == ["program-ended"]


def test_lost_rows_are_told_and_change_no_figure(tmp_path: Path) -> None:
    rows = steps(6_000)
    for folder, kept in (("whole", rows), ("torn", np.delete(rows, np.s_[2_000:4_500]))):
        watched_folders.write_process(tmp_path / folder / "watch", CALLED, kept)
        watched_folders.write_start(tmp_path / folder / "watch", START)
    whole, torn = (summary_of(read_run(tmp_path / folder)) for folder in ("whole", "torn"))
    lost = torn.ending[-1]
    assert lost.fact == "steps-lost" and lost.values["lost"] == 2_500
    assert lost.values["seconds"] == pytest.approx(2_500 * 0.005)
    assert len(whole.ending) == 1
    assert torn.steps == whole.steps == 6_000
    assert torn.training_s == pytest.approx(whole.training_s)
    assert torn.phases_s == pytest.approx(whole.phases_s)
    assert torn.median_step_s == pytest.approx(whole.median_step_s)
    assert "2,500 calls" in end_report.rendered(tmp_path / "torn", "terminal")


@pytest.fixture
def thread(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of the thread in which the program's next event happens."""
    current = [1]
    monkeypatch.setattr(stepping, "get_ident", lambda: current[0])
    return current


def overlapping_calls(program: Program, thread: list[int], pairs: int) -> None:
    """Two threads take turns: a call begins each 10 ms, and takes 15."""
    for _ in range(pairs):
        for number in (1, 2):
            thread[0] = number
            program.does(step_log.FORWARD_BEGIN, EVAL, 1 << event_rows.ROWS_BITS | 5, ms=5)
            thread[0] = 3 - number
            program.does(step_log.FORWARD_END, 0, ms=5)


def test_calls_of_all_threads_count_each_by_its_own_time(
    program: Program, thread: list[int]
) -> None:
    overlapping_calls(program, thread, 20)
    assert program.log.infer() and program.found == [("forward", 0)]
    overlapping_calls(program, thread, 100)
    found = program.steps()
    assert found.steps.sum() == found.step[-1] == 240
    assert np.allclose(found.step_s[:-1], 0.010)  # by the clock one begins each 10 ms
    assert np.allclose(found.samples, 5)
    told = program.log.overlapping.facts()
    assert (told["calls"], told["most_at_once"]) == (239, 2)
    assert told["total_s"] == pytest.approx(239 * 0.015)


def test_the_end_of_another_models_call_ends_none(program: Program, thread: list[int]) -> None:
    """A service of two models, where a call of the first one never ended."""
    overlapping_calls(program, thread, 40)
    assert program.log.infer()
    program.log.work()
    before = program.log.overlapping.facts()
    other = 1 << event_rows.FORWARD_BITS
    for number in (1, 2) * 20:
        thread[0] = number
        program.does(step_log.FORWARD_BEGIN, EVAL)
        program.does(step_log.FORWARD_BEGIN, other)
        program.does(step_log.FORWARD_END, 1, ms=100)
    program.log.work()
    assert program.log.overlapping.facts()["calls"] == before["calls"]


def test_threads_that_call_after_the_first_one_are_followed_too(
    program: Program, thread: list[int]
) -> None:
    for _ in range(40):
        program.forward(EVAL)
    assert program.log.infer()
    program.log.work()
    overlapping_calls(program, thread, 100)
    found = program.steps()
    assert found.steps.sum() == found.step[-1] == 240
    assert program.log.overlapping.facts()["most_at_once"] == 2
    ends_ns = found.start_ns + (found.total_s * 1e9).astype(int)
    assert np.abs(found.start_ns[1:] - ends_ns[:-1]).max() < 20_000


@pytest.mark.slow
def test_requests_that_threads_handle_are_all_seen(tmp_path: Path) -> None:
    """One of four threads was followed, and a third of its calls was hidden by the others'."""
    (tmp_path / "serve.py").write_text(
        "import threading\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "import torch\n"
        "both = threading.Barrier(2)\n"
        "class Model(torch.nn.Linear):\n"
        "    def forward(self, x):\n"
        "        both.wait()\n"
        "        return super().forward(x)\n"
        "model, x = Model(4, 4).eval(), torch.ones(8, 4)\n"
        "def answer(_):\n"
        "    with torch.no_grad():\n"
        "        return model(x)\n"
        "with ThreadPoolExecutor(2) as pool:\n"
        "    list(pool.map(answer, range(4000)))\n"
    )
    words = ["-m", "torchdoctor", "watch", "--output", "run", "serve.py"]
    subprocess.run([sys.executable, *words], cwd=tmp_path, check=True, timeout=300)
    told = summary_of(read_run(tmp_path / "run"))
    assert (told.program, told.unit) == ("inference", "call")
    # Those that had begun before the first one had shown which class is called are not seen.
    assert 3_900 <= told.steps <= 4_000
    assert told.overlapping is not None and told.overlapping.most_at_once == 2
    assert told.overlapping.calls >= 3_900
    assert told.overlapping.per_s == pytest.approx(told.steps / told.training_s)
    assert [fact.fact for fact in told.ending] == ["program-ended"]
    assert told.median_step_s is None and not told.trying and not told.slowest
    for form in ("terminal", "html", "markdown", "json"):
        assert "at once" in end_report.rendered(tmp_path / "run", form) or form == "json"
