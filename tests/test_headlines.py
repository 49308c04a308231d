"""The benchmark of headline numbers: every workload trains, no number stands without a trial."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from forked_programs import environment, run

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

from headlines import CLAIMS, Claim, judged, measured, shown  # noqa: E402

FIXES = {path.stem.replace("_", "-") for path in (ROOT / "torchdoctor/fixes").glob("*.py")}
CLAIM = Claim(name="x", fix="fused-optimizer", says="5 %", source="a guide", program="pass")


def report(*trials: dict) -> dict:
    made = [{"reason": None, "memory_change_bytes": -5_000_000, **one} for one in trials]
    return {"environment": {"cpu": "a CPU", "gpus": [{"name": "a GPU"}]}, "trials": made}


def test_claims_are_of_fixes_that_there_are() -> None:
    assert {claim.fix for claim in CLAIMS} <= FIXES
    assert len({claim.name for claim in CLAIMS}) == len(CLAIMS)


def test_no_number_without_a_measurement() -> None:
    refused = {
        "fixes": {"fused-optimizer": {}},
        "speedup": None,
        "verdict": "refused",
        "reason": "Why.",
    }
    row = judged(CLAIM, report(refused))
    assert (row.speedup, row.said) == (None, "Why.")
    assert "x (" not in shown(row)
    other = {
        "fixes": {"tf32": {}},
        "speedup": {"estimate": 2.0, "low": 1.9, "high": 2.1},
        "verdict": "faster",
    }
    row = judged(CLAIM, report(other))
    assert row.speedup is None and row.said and "x (" not in shown(row)
    gpu = next(claim for claim in CLAIMS if claim.needs_gpu)
    assert measured(gpu, False, "1s").said == "needs a GPU"


def test_the_best_trial_is_shown_with_its_interval_and_machine() -> None:
    def trial(estimate: float) -> dict:
        speedup = {"estimate": estimate, "low": estimate - 0.1, "high": estimate + 0.1}
        return {"fixes": {"fused-optimizer": {}}, "speedup": speedup, "verdict": "faster"}

    line = shown(judged(CLAIM, report(trial(1.1), trial(1.3))))
    assert "1.30x (1.20-1.40)" in line and "a CPU" in line and "a GPU" in line and "MB" not in line


PROGRAMS = {claim.program: claim.name for claim in CLAIMS if claim.program}


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS, ids=PROGRAMS.values())
def test_each_workload_trains(program: str, tmp_path: Path) -> None:
    """One backward pass of the program as it is, but for smaller batches."""
    stop = """
import torch
_old = torch.autograd.backward
def _backward(*args, **kwargs):
    _old(*args, **kwargs)
    raise SystemExit("one backward pass")
torch.autograd.backward = _backward
"""
    (tmp_path / "train.py").write_text(stop + re.sub(r"batch_size=\d+", "batch_size=4", program))
    done = run(["train.py"], tmp_path, environment(), tmp_path)
    assert done.stderr.strip().endswith("one backward pass"), done.stderr
