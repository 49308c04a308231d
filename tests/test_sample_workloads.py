"""The sample workloads run, and say in their docstrings what should be found in them."""

import importlib.util
import sys
from pathlib import Path

import pytest
from forked_programs import environment, run

FOLDER = Path(__file__).parent.parent / "sample_workloads"
BRANCHES = {"data_loader", "memcpy", "communication", "gpu", "cpu", "other"}
CHECKS = {
    "loader-cpu-bound",
    "loader-io-bound",
    "inline-batch-preparation",
    "many-small-kernels",
    "single-tensor-optimizer",
    "compute",
    "low-precision-unused",
    "convolutions-nchw",
    "debug-left-on",
    "evaluation-with-gradients",
    "too-many-threads",
    "pageable-copies",
    "sync-in-step",
    "padded-tokens",
    "decoding-without-cache",
    "training-mode-left-on",
    "inference-with-gradients",
}
FIXES = {
    "decoded-cache",
    "loader-workers",
    "persistent-workers",
    "torch-compile",
    "fused-optimizer",
    "mixed-precision",
    "cpu-bfloat16-products",
    "channels-last",
    "debug-off",
    "no-grad-evaluation",
    "cpu-threads",
    "pin-memory",
    "pad-to-longest",
    "key-value-cache",
    "eval-mode",
    "inference-mode",
}


def load_expectations():
    spec = importlib.util.spec_from_file_location("expectations", FOLDER / "expectations.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["expectations"] = module
    spec.loader.exec_module(module)
    return module


expectations = load_expectations()
ALL = expectations.read_all()


@pytest.mark.parametrize("workload", ALL, ids=lambda workload: workload.script.stem)
def test_workload_runs_and_prints_a_finite_figure(workload, tmp_path):
    temporary, streams = tmp_path / "tmp", tmp_path / "streams"
    temporary.mkdir()
    streams.mkdir()
    surroundings = environment(TMPDIR=str(temporary))
    command = [str(workload.script), "--steps", "3"]
    done = run(command, temporary, surroundings, streams, timeout=600)
    assert done.returncode == 0, done.stderr
    last = [line for line in done.stdout.splitlines() if line.startswith("step 3 ")][-1]
    assert 0.0 < float(last.split()[3]) < 100.0
    # torch keeps a folder of its own for compiled code there.
    assert [p for p in temporary.iterdir() if not p.name.startswith("torchinductor")] == []


@pytest.mark.parametrize("workload", ALL, ids=lambda workload: workload.script.stem)
def test_docstring_names_known_ids(workload):
    assert {name for names in workload.checks.values() for name in names} <= CHECKS
    assert {name for names in workload.bottleneck.values() for name in names} <= BRANCHES
    assert {name for names in workload.fix.values() for name in names} <= FIXES


def test_every_illness_has_its_workload():
    named = {name for workload in ALL for names in workload.checks.values() for name in names}
    assert named == CHECKS
    healthy = [w.script.stem for w in ALL if w.illness.startswith("none")]
    assert healthy == ["tuned"]


def test_answers_depend_on_the_machine():
    found = expectations.answers("a, b; on a GPU: c; on a CPU without bfloat16 units: none")
    assert expectations.applying(found, gpu=False, bfloat16=True) == ("a", "b")
    assert expectations.applying(found, gpu=True, bfloat16=True) == ("c",)
    assert expectations.applying(found, gpu=False, bfloat16=False) == ()
    with pytest.raises(ValueError, match="unknown condition"):
        expectations.answers("a; on the moon: b")


def test_a_field_that_is_missing_is_named(tmp_path):
    script = tmp_path / "odd.py"
    script.write_text('"""Odd.\n\nIllness: some\nCheck expected: compute\n"""\n')
    with pytest.raises(ValueError, match="Bottleneck expected, Fix expected"):
        expectations.read(script)


def test_workloads_are_short():
    assert all(len(w.script.read_text().splitlines()) < 100 for w in ALL)
