"""A program that compiles by itself: what torch says of it, by the real probe and real traces."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from in_words import evidence_of
from partial_recordings import recording
from probed import run_plain, run_probed

from torchdoctor.checks import graph_breaks, recompilations
from torchdoctor.probe.hooks.compile_log import CompileFacts
from torchdoctor.schema import ProcessFacts, Recording
from torchdoctor.trace.reader import read_trace
from torchdoctor.trace.summary import summarise

pytestmark = pytest.mark.slow

# backend="eager" captures and guards as the real one does, and generates no code.
PROGRAM = """
import sys, torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.calls = 0

    def forward(self, x):
        y = self.layer(x)  # guards
        SAYS
        return y * 2

net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
COMPILES
for size in SIZES:
    optimizer.zero_grad()
    net(torch.randn(size, 4)).sum().backward()
    optimizer.step()
"""
COMPILES = 'net.compile(backend="eager", dynamic=False)'


def observed(
    folder: Path, says: str = "pass", sizes: str = "[4] * 8", compiles: str = COMPILES
) -> SimpleNamespace:
    """What the checks say of the program, and the lines that its comments name."""
    text = PROGRAM.replace("SAYS", says).replace("SIZES", sizes).replace("COMPILES", compiles)
    script = folder / "train.py"
    script.write_text(text)
    ran = run_probed([str(script)], cwd=folder, folder=folder, after="continue", forked=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.said() == []
    facts = msgspec.convert(ran.main, type=ProcessFacts)
    seen = replace(recording({"workload": {"cwd": str(folder)}}), processes=[facts])
    lines = {x.split("# ")[1]: n for n, x in enumerate(text.splitlines(), 1) if "# " in x}
    return SimpleNamespace(
        compilation=seen.main.compilation,
        recording=seen,
        breaks=graph_breaks.CHECK.findings(seen),
        again=recompilations.CHECK.findings(seen),
        lines=lines,
        script=str(script),
    )


def test_sizes_that_vary_are_seen_as_recompilations_with_their_line(tmp_path: Path) -> None:
    seen = observed(tmp_path, sizes="[4, 4, 4, 5, 6, 7, 8, 9]")
    assert seen.compilation.later_recompiles == 5
    assert 0 < seen.compilation.later_s < seen.compilation.watched_s
    [finding] = seen.again
    facts = {each.fact: each for each in finding.evidence}
    assert facts["again"].values["times"] == 5
    assert "mark_dynamic" in " ".join(evidence_of(finding, seen.recording)), "what ends it"
    assert finding.location.file == seen.script
    assert seen.breaks == []


def test_only_further_versions_are_counted_and_torchs_own_wrapper_is_no_line(monkeypatch) -> None:
    """A model is compiled as torch's wrapper; evaluation compiles another model late, once."""
    wrapper = "/venv/lib/site-packages/torch/_dynamo/external_utils.py"
    begun = time.time() + 10.0

    def version(number: int, name: str | None, cache_size: int | None, at: float) -> object:
        return SimpleNamespace(
            compile_id=f"{len(name or 'inner')}/{number}",
            entire_frame_compile_time_s=4.0 if cache_size == 0 else 1.0,
            start_time=begun + at,
            cache_size=cache_size,
            co_name=name,
            co_filename=wrapper,
            co_firstlineno=67,
        )

    rows = [
        version(0, "inner", 0, -5.0),
        version(1, "inner", 1, 1.0),  # the last and smaller batch
        version(1, None, None, 2.0),  # its backward graph
        version(2, "inner", 2, 3.0),  # evaluation
        version(0, "evaluate", 0, 4.0),  # for the first time
        version(1, "evaluate", 1, 5.0),
    ]
    inner = _fail.__code__.replace(co_name="inner", co_filename=wrapper, co_firstlineno=67)
    utils = SimpleNamespace(
        get_compilation_metrics=lambda: rows,
        guard_failures={inner: ["0/0: GLOBAL_STATE changed: grad_mode "]},
        counters={"graph_break": {}, "stats": {"unique_graphs": 3}},
        graph_break_reasons=[],
        calculate_time_spent=lambda: {"total_wall_time": 12.0},
    )
    dynamo = SimpleNamespace(utils=utils)
    torch = SimpleNamespace(__file__="/venv/lib/site-packages/torch/__init__.py", _dynamo=dynamo)
    monkeypatch.setitem(sys.modules, "torch._dynamo", dynamo)
    monkeypatch.setattr(time, "time", lambda: begun + 20.0)
    session = SimpleNamespace(
        torch=torch, started_unix_s=begun - 10.0, first_step_s=10.0, fail=_fail
    )
    facts = CompileFacts(session).facts()["compilation"]
    assert (facts["later_recompiles"], facts["later_most"]) == (3, 2)
    assert facts["later_s"] == 4.0, "three versions and a backward graph"
    [reason] = facts["recompile_reasons"]
    assert reason == {"reason": "GLOBAL_STATE changed: grad_mode", "count": 1}


def _fail(_place: str, error: Exception) -> None:
    raise error


def test_a_function_that_torch_gives_up_is_named_with_what_changes(tmp_path: Path) -> None:
    seen = observed(tmp_path, says="self.calls += 1", sizes="[4] * 12")
    given_up = [each for found in seen.again for each in found.evidence if each.fact == "given-up"]
    assert given_up and given_up[0].values["function"].startswith("'forward' (")
    assert "train.py:" in given_up[0].values["function"]
    said = " ".join(e for finding in seen.again for e in evidence_of(finding, seen.recording))
    assert "TORCH_LOGS=recompiles" in said, "which shows each guard that fails"


def test_a_print_in_the_forward_is_a_graph_break_with_its_line(tmp_path: Path) -> None:
    seen = observed(tmp_path, says="print('seen')  # breaks")
    [finding] = seen.breaks
    assert (finding.location.file, finding.location.line) == (seen.script, seen.lines["breaks"])
    assert [each.fact for each in finding.evidence] == ["breaks", "break", "see-why"]
    said = " ".join(evidence_of(finding, seen.recording))
    assert f"train.py:{seen.lines['breaks']}: " in said
    assert seen.again == []


def test_one_graph_is_no_finding_and_without_compiling_nothing_is_said(tmp_path: Path) -> None:
    (tmp_path / "compiled").mkdir()
    (tmp_path / "eager").mkdir()
    compiled = observed(tmp_path / "compiled")
    assert compiled.compilation.graphs == 1
    assert compiled.breaks == [] and compiled.again == []
    assert observed(tmp_path / "eager", compiles="pass").compilation is None


TRACED = """
import sys, torch
from torch.profiler import profile, schedule

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x):
        y = self.layer(x)
        print("seen")  # breaks
        return y * 2

net = Net()
net.compile(backend="aot_eager", dynamic=False)
keep = lambda one: one.export_chrome_trace(sys.argv[1])
steps = schedule(wait=1, warmup=1, active=4)
with profile(schedule=steps, with_stack=True, on_trace_ready=keep) as p:
    for size in eval(sys.argv[2]):
        net(torch.randn(size, 4)).sum().backward()
        p.step()
"""


def _traced(folder: Path, sizes: str) -> tuple[Recording, int]:
    script, trace = folder / "train.py", folder / "trace.json"
    script.write_text(TRACED)
    ran = run_plain([str(script), str(trace), sizes], folder, forked=True)
    assert ran.returncode == 0, ran.stderr
    line = next(n for n, x in enumerate(TRACED.splitlines(), 1) if "# breaks" in x)
    seen = recording({"processes": []})
    return replace(seen, trace=summarise(read_trace(trace))), line


def test_a_trace_shows_what_is_compiled_in_its_steps_and_where_graphs_break(
    tmp_path: Path,
) -> None:
    seen, line = _traced(tmp_path, "[4, 4, 4, 5, 6, 6]")
    compiled = seen.trace.compilation
    assert compiled.steps_with == 2
    assert compiled.compiles_per_step * 4 == 4, "two pieces at two new sizes"
    [finding] = recompilations.CHECK.findings(seen)
    values = finding.evidence[0].values
    assert (values["steps_with"], values["steps"], values["functions"]) == (2, 4, 4)
    assert 0.2 < finding.share_of_step <= 1.0
    [broken] = graph_breaks.CHECK.findings(seen)
    assert (broken.location.line, broken.location.function) == (line, "forward")


def test_a_trace_of_steps_that_compile_nothing_is_no_finding(tmp_path: Path) -> None:
    seen, _ = _traced(tmp_path, "[4, 4, 4, 4, 4, 4]")
    assert seen.trace.compilation.compile_s == 0.0
    assert recompilations.CHECK.findings(seen) == []
