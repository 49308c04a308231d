"""Every fix's own example, through the real probe: its output without the fix and with it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from probed_examples import run_with

from torchdoctor import catalogue

FIXES = catalogue.fixes()
NEEDS_CUDA = [i for i, m in FIXES.items() if getattr(m, "EXAMPLE_NEEDS", None) == "cuda"]
ANYWHERE = [i for i in FIXES if i not in NEEDS_CUDA]


def _skip_without_libraries(ident: str) -> None:
    """EXAMPLE_NEEDS names libraries of the user's, or "cuda"."""
    needs = getattr(FIXES[ident], "EXAMPLE_NEEDS", "")
    for name in needs.split() if needs != "cuda" else ():
        pytest.importorskip(name)


@pytest.mark.slow
@pytest.mark.parametrize("ident", FIXES)
def test_without_the_fix(ident: str, tmp_path: Path) -> None:
    _skip_without_libraries(ident)
    ran = run_with(FIXES[ident].EXAMPLE, {}, tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == FIXES[ident].EXAMPLE_WITHOUT
    assert not ran.probe_errors


@pytest.mark.slow
@pytest.mark.parametrize("ident", ANYWHERE)
def test_with_the_fix(ident: str, tmp_path: Path) -> None:
    _skip_without_libraries(ident)
    module = FIXES[ident]
    ran = run_with(module.EXAMPLE, {ident: module.EXAMPLE_SETTINGS}, tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert ran.applied[ident]["state"] == "applied", ran.applied
    assert ran.stdout == module.EXAMPLE_WITH
    assert not ran.probe_errors


@pytest.mark.slow
@pytest.mark.parametrize("ident", NEEDS_CUDA)
@pytest.mark.skipif(torch.cuda.is_available(), reason="here the fix applies")
def test_refused_in_the_program_without_a_gpu(ident: str, tmp_path: Path) -> None:
    module = FIXES[ident]
    ran = run_with(module.EXAMPLE, {ident: module.EXAMPLE_SETTINGS}, tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert ran.applied[ident]["state"] == "refused"
    reason = ran.applied[ident]["reason"]
    assert "CUDA" in reason or "GPU" in reason
    assert ran.stdout == module.EXAMPLE_WITHOUT


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("ident", NEEDS_CUDA)
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_with_the_fix_on_a_gpu(ident: str, tmp_path: Path) -> None:
    module = FIXES[ident]
    ran = run_with(module.EXAMPLE, {ident: module.EXAMPLE_SETTINGS}, tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert ran.applied[ident]["state"] == "applied", ran.applied
    assert ran.stdout == module.EXAMPLE_WITH
