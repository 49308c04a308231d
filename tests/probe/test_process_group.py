"""The backend of a job's process group: seen by the probe and in traces, and changed by an edit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from partial_recordings import recording
from probed import run_probed

from torchdoctor.advice import catalogue
from torchdoctor.checks import backend_not_nccl
from torchdoctor.edits.diff import unified_diff
from torchdoctor.fixes import nccl_backend
from torchdoctor.schema import Location, ProcessFacts
from torchdoctor.trace.reader import read_trace
from torchdoctor.trace.summary import summarise

FIX = catalogue.fixes()["nccl-backend"]
PROGRAM = """
import sys, torch
import torch.distributed as dist

def set_up(backend):
    store = dist.FileStore(sys.argv[1], 1)
    dist.init_process_group(backend, store=store, rank=0, world_size=1)  # group

set_up("gloo")
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
with torch.profiler.profile() as profiler:
    for _ in range(6):
        optimizer.zero_grad()
        net(torch.randn(8, 4)).sum().backward()
        optimizer.step()
profiler.export_chrome_trace(sys.argv[2])
dist.destroy_process_group()
"""
LINE = next(n for n, x in enumerate(PROGRAM.splitlines(), 1) if "# group" in x)


@pytest.mark.slow
def test_the_backend_and_the_line_that_makes_the_group_are_seen(tmp_path: Path) -> None:
    script, trace = tmp_path / "train.py", tmp_path / "trace.json"
    script.write_text(PROGRAM)
    arguments = [str(script), str(tmp_path / "store"), str(trace)]
    ran = run_probed(arguments, cwd=tmp_path, folder=tmp_path, after="continue", forked=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.said() == []
    facts = msgspec.convert(ran.main, type=ProcessFacts)
    assert facts.backend == "gloo" and facts.world_size == 1
    assert facts.backend_location == Location(file=str(script), line=LINE, function="set_up")
    of_trace = summarise(read_trace(trace))
    assert (of_trace.backend, of_trace.world_size) == ("gloo", 1)
    assert of_trace.host_collective_s is None, "there is no GPU to be kept waiting"
    # The same of two processes that train on GPUs.
    on_gpus = [replace(model, device="cuda:0") for model in facts.models]
    several = replace(facts, world_size=2, models=on_gpus)
    assert backend_not_nccl.CHECK.findings(replace(recording(), processes=[facts])) == []
    [finding] = backend_not_nccl.CHECK.findings(replace(recording(), processes=[several]))
    assert finding.location.line == LINE


def test_torch_reads_the_backend_that_the_edit_writes() -> None:
    from torch.distributed.distributed_c10d import BackendConfig

    config = BackendConfig(nccl_backend._BACKEND["backend"])
    assert config.get_device_backend_map() == {"cpu": "gloo", "cuda": "nccl"}


@pytest.mark.parametrize(
    ("call", "changed"),
    [
        ('dist.init_process_group("gloo")', 'dist.init_process_group("cpu:gloo,cuda:nccl")'),
        (
            'dist.init_process_group(backend="mpi", rank=0)',
            'dist.init_process_group(backend="cpu:gloo,cuda:nccl", rank=0)',
        ),
        (
            'init_process_group(init_method="env://")',
            'init_process_group(init_method="env://", backend="cpu:gloo,cuda:nccl")',
        ),
    ],
)
def test_the_edit_changes_the_backend_where_the_group_is_made(
    tmp_path: Path, call: str, changed: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(call + "\n")
    process = {
        "pid": 1,
        "world_size": 2,
        "backend": "gloo",
        "backend_location": {"file": str(script), "line": 1},
        "models": [{"ident": 0, "device": "cuda:0"}],
    }
    seen = recording({"workload": {"cwd": str(tmp_path)}, "processes": [process]})
    diff = unified_diff(FIX.edits({}, seen), str(tmp_path))
    assert diff is not None
    assert f"+{changed}" in diff.replace("'", '"').splitlines()
