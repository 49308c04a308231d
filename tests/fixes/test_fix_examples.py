"""Every fix's own example, through the real probe: its output without the fix and with it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch
from partial_recordings import recording
from probed_examples import run_with

from torchdoctor import catalogue

BY_HAND = {i: m for i, m in catalogue.fixes().items() if catalogue.is_by_hand(m)}
FIXES = {i: m for i, m in catalogue.fixes().items() if i not in BY_HAND}
NEEDS_CUDA = [i for i, m in FIXES.items() if getattr(m, "EXAMPLE_NEEDS", None) == "cuda"]
ANYWHERE = [i for i in FIXES if i not in NEEDS_CUDA]


def lacks_libraries(ident: str) -> bool:
    """EXAMPLE_NEEDS names libraries of the user's, or "cuda"."""
    needs = getattr(FIXES[ident], "EXAMPLE_NEEDS", "").split()
    return any(importlib.util.find_spec(name) is None for name in needs if name != "cuda")


def given(module: ModuleType) -> dict[str, str]:
    """The environment that the example is run in before the fix changes it."""
    found: dict[str, str] = getattr(module, "EXAMPLE_ENVIRONMENT", {})
    return found


# One import of torch for all; each example has a process of its own all the same.
FORKS = """
import os, runpy, sys, torch
for folder in sys.argv[1:]:
    if not (child := os.fork()):
        os.chdir(folder)
        output = os.open("output.txt", os.O_WRONLY | os.O_CREAT)
        os.dup2(output, 1)
        sys.argv = ["example.py"]
        runpy.run_path("example.py", run_name="__main__")
        sys.exit()
    assert os.waitpid(child, 0)[1] == 0, folder
"""


@pytest.mark.slow
def test_without_the_fixes(tmp_path: Path) -> None:
    by_environment: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for ident, module in FIXES.items():
        if lacks_libraries(ident):
            continue
        (tmp_path / ident).mkdir()
        (tmp_path / ident / "example.py").write_text(module.EXAMPLE)
        by_environment.setdefault(tuple(sorted(given(module).items())), []).append(ident)
    said = {}
    for number, (variables, idents) in enumerate(by_environment.items()):
        folders = [str(tmp_path / ident) for ident in idents]
        folder = tmp_path / f"driver-{number}"
        ran = run_with(FORKS, {}, folder, variables=dict(variables), arguments=folders)
        assert ran.returncode == 0, ran.stderr
        assert not ran.probe_errors
        said |= {i: (tmp_path / i / "output.txt").read_text().strip() for i in idents}
    assert said == {ident: FIXES[ident].EXAMPLE_WITHOUT for ident in said}


@pytest.mark.slow
@pytest.mark.parametrize("ident", ANYWHERE)
def test_with_the_fix(ident: str, tmp_path: Path) -> None:
    if lacks_libraries(ident):
        pytest.skip(f"needs {FIXES[ident].EXAMPLE_NEEDS}")
    module = FIXES[ident]
    ran = run_with(
        module.EXAMPLE, {ident: module.EXAMPLE_SETTINGS}, tmp_path, variables=given(module)
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.applied[ident]["state"] == "applied", ran.applied
    assert ran.stdout == module.EXAMPLE_WITH
    assert not ran.probe_errors


@pytest.mark.slow
@pytest.mark.parametrize("ident", NEEDS_CUDA)
@pytest.mark.skipif(torch.cuda.is_available(), reason="here the fix applies")
def test_refused_in_the_program_without_a_gpu(ident: str, tmp_path: Path) -> None:
    module = FIXES[ident]
    ran = run_with(
        module.EXAMPLE, {ident: module.EXAMPLE_SETTINGS}, tmp_path, variables=given(module)
    )
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
    ran = run_with(
        module.EXAMPLE, {ident: module.EXAMPLE_SETTINGS}, tmp_path, variables=given(module)
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.applied[ident]["state"] == "applied", ran.applied
    assert ran.stdout == module.EXAMPLE_WITH


OFFERS = [(i, n) for i, m in BY_HAND.items() for n in range(len(m.OFFERS))]
REFUSES = [(i, n) for i, m in BY_HAND.items() for n in range(len(m.REFUSES))]


@pytest.mark.parametrize(("ident", "number"), OFFERS)
def test_is_offered_with_what_to_write(ident: str, number: int) -> None:
    module = BY_HAND[ident]
    over, text = module.OFFERS[number]
    seen = recording(over)
    assert module.refuses(seen) is None
    for settings in module.settings(seen) or [{}]:
        assert text in module.instruction(settings, seen)


@pytest.mark.parametrize(("ident", "number"), REFUSES)
def test_is_refused_with_a_reason(ident: str, number: int) -> None:
    over, text = BY_HAND[ident].REFUSES[number]
    reason = BY_HAND[ident].refuses(recording(over))
    assert reason is not None and text in reason
    assert reason.endswith(".") and "\n" not in reason


@pytest.mark.parametrize("ident", BY_HAND)
def test_what_is_by_hand_says_why_and_shows_both(ident: str) -> None:
    module = BY_HAND[ident]
    assert module.UNTRIED.endswith(".")
    assert module.OFFERS
    assert module.REFUSES
    assert module.refuses(recording()) is not None, "it must not be offered to everybody"
