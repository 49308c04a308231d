"""What is said of torch.compile's own work: time, graph breaks, recompilations, with lines."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import forked_programs
import pytest
import torch
from probed_examples import run_with

from torchdoctor.advice import catalogue
from torchdoctor.edits.source import edited
from torchdoctor.probe.hooks import compile_log
from torchdoctor.reports.trial_rows import compilation
from torchdoctor.schema import FixSet, Trial

pytestmark = pytest.mark.slow
FIX = catalogue.fixes()["torch-compile"]
INLINES = tuple(int(x) for x in torch.__version__.split(".")[:2]) >= (2, 5)

# backend="eager" captures and guards as the real one does, and generates no code.
PROGRAM = """
import json, sys, torch, torch._dynamo
sys.path.insert(0, ROOT)
from torchdoctor.probe.hooks import compile_log
log = compile_log.CompileLog(torch)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.calls = torch.nn.Linear(4, 4), 0

    def forward(self, x):
        CHANGE
        y = self.layer(x)
        print("seen", file=sys.stderr)  # breaks
        return y * (self.calls + 1)  # guards

net = Net()
net.compile(backend="eager", dynamic=DYNAMIC)
for size in SIZES:
    net(torch.randn(size, 4)).sum().backward()
    log.changed()
print(json.dumps(log.details()))
"""


def compiled(
    folder: Path, change: str = "pass", sizes: str = "[4] * 6", dynamic: str = "False"
) -> tuple[dict[str, Any], dict[str, int], str]:
    """Details, the line of each text that is marked `# name`, and the script's name."""
    text = PROGRAM.replace("ROOT", repr(str(Path(compile_log.__file__).parents[3])))
    text = text.replace("CHANGE", change).replace("SIZES", sizes).replace("DYNAMIC", dynamic)
    script = folder / "train.py"
    script.write_text(text)
    ran = forked_programs.run([str(script)], folder, forked_programs.environment(), folder)
    assert ran.returncode == 0, ran.stderr
    lines = {x.split("# ")[1]: n for n, x in enumerate(text.splitlines(), 1) if "# " in x}
    return json.loads(ran.stdout), lines, str(script)


def test_a_graph_break_is_named_with_its_line(tmp_path: Path) -> None:
    details, lines, script = compiled(tmp_path)
    assert details["graphs"] == 2
    assert details["compile_s"] > 0
    (row,) = details["breaks"]
    assert (row["file"], row["line"]) == (script, lines["breaks"])
    assert details["recompiles"] == 0 and details["compiled_at"] == [1]
    text = " ".join(
        compilation(Trial(fixes=FixSet.of("torch-compile"), details=details), str(tmp_path))
    )
    assert f"(train.py:{lines['breaks']})" in text
    assert "again" not in text


def test_compiling_in_every_step_is_said_with_what_changes(tmp_path: Path) -> None:
    details, _, script = compiled(tmp_path, change="self.calls += 1", sizes="[4] * 12")
    assert details["recompiles"] >= 7
    assert details["compiled_at"][:6] == [1, 2, 3, 4, 5, 6]
    assert details["gave_up"] and "forward" in details["gave_up"][0]["function"]
    rows = [row for row in details["recompile_reasons"] if "calls" in row["reason"]]
    assert rows and {row["file"] for row in rows} == {script}
    text = " ".join(
        compilation(Trial(fixes=FixSet.of("torch-compile"), details=details), str(tmp_path))
    )
    given_up = details["gave_up"][0]["function"]
    assert "'forward'" in given_up and "train.py:" in given_up
    assert given_up.replace(f"{tmp_path}/", "") in text.replace(f"{tmp_path}/", "")
    assert "again" in text


def test_sizes_that_vary_are_named_and_dynamic_compiles_once(tmp_path: Path) -> None:
    (tmp_path / "static").mkdir()
    (tmp_path / "dynamic").mkdir()
    sizes = "[3, 4, 5, 6, 7, 8]"
    details, _, _ = compiled(tmp_path / "static", sizes=sizes)
    assert details["recompiles"] >= 5
    assert any("size mismatch" in row["reason"] for row in details["recompile_reasons"])
    trial = Trial(fixes=FixSet.of("torch-compile"), details=details, verdict="slower")
    assert any("mark_dynamic" in sentence for sentence in compilation(trial, "/"))
    details, _, _ = compiled(tmp_path / "dynamic", sizes=sizes, dynamic="True")
    assert details["recompiles"] == 0
    assert compilation(replace(trial, details={"mode": "default"}), "/") == []


ON_A_CPU = """
import functools, torch
from torch._inductor import codecache, config, cpu_vec_isa
torch.compile = functools.partial(torch.compile, backend="eager")
config.cpp.vec_isa_ok = True  # each kind builds
net = torch.nn.Linear(4, 4)
for _ in range(2):
    net(torch.ones(2, 4)).sum().backward()
print(len(cpu_vec_isa.valid_vec_isa_list()), repr(cpu_vec_isa.pick_vec_isa()))
print(codecache._HEADER_DIR.startswith(codecache.cache_dir()))
"""


@pytest.mark.skipif(not INLINES, reason="torch 2.4 has no list of instructions to choose from")
def test_on_a_cpu_no_time_goes_into_instructions_that_are_not_taken(tmp_path: Path) -> None:
    """Each kind took 2 s to compile, of 27 s; the header 4 s, in a folder that was thrown away."""
    plain = run_with(ON_A_CPU, {}, tmp_path / "plain").stdout.split()
    ran = run_with(ON_A_CPU, {"torch-compile": {"mode": "default"}}, tmp_path / "with")
    assert ran.stdout.split()[:2] == ["1" if plain[0] != "0" else "0", plain[1]], ran.stderr
    assert ran.stdout.split()[-1] == "True"


BLOCKS = """
import functools, torch
torch.compile = functools.partial(torch.compile, backend="eager")  # for a graph, no C++ compiler

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x):
        return x + torch.relu(self.layer(x))

torch.manual_seed(0)
net = torch.nn.Sequential(*(Block() for _ in range(4)), torch.nn.Linear(4, 1))
for _ in range(3):
    loss = net(torch.ones(2, 4)).sum()
    loss.backward()
print("%.5f" % loss.item(), [block._compiled_call_impl is not None for block in net])
"""


@pytest.mark.skipif(not INLINES, reason="before 2.5 each block is compiled by itself")
def test_repeated_blocks_are_compiled_once_for_all_by_the_fix_and_its_edit(tmp_path: Path) -> None:
    from partial_recordings import recording

    plain = run_with(BLOCKS, {}, tmp_path / "plain")
    settings = {"mode": "default", "blocks": "Block"}
    ran = run_with(BLOCKS, {"torch-compile": settings}, tmp_path / "with")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split()[0] == plain.stdout.split()[0]
    assert ran.stdout.endswith("[True, True, True, True, False]")
    applied = ran.applied["torch-compile"]
    assert applied["state"] == "applied"
    # The first block's input needs no gradient, the others' does: two graphs, not four.
    assert applied["details"]["graphs"] <= 2
    assert applied["details"]["blocks"] == "Block"

    call = {"file": str(tmp_path / "plain" / "example.py"), "function": "<module>"}
    call["line"] = next(n for n, x in enumerate(BLOCKS.splitlines(), 1) if "net(torch" in x)
    named = {"location": call, "name": "net"}
    model = {"ident": 0, "cls": "__main__.Net", "holder_depth": 1, "forwards": 3}
    model |= {"call": named, "holder": named}
    seen = recording({"processes": [{"pid": 1, "models": [model]}]})
    [edit] = FIX.edits(settings, seen)
    changed = edited(BLOCKS, edit)
    assert changed is not None
    patched = run_with(changed, {}, tmp_path / "patched")
    assert patched.stdout == ran.stdout, patched.stderr


def test_what_to_write_for_each_setting() -> None:
    from partial_recordings import recording

    seen = recording({"processes": [{"pid": 1, "models": [{"ident": 0, "cls": "__main__.Net"}]}]})
    dynamic = FIX.instruction({"mode": "default", "dynamic": True}, seen)
    assert dynamic.startswith("model.compile(dynamic=True)")
    blocks = FIX.instruction({"mode": "default", "blocks": "Block"}, seen)
    assert '== "Block"' in blocks and "block.compile()" in blocks
    compile(blocks, "<instruction>", "exec")
