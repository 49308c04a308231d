"""Every fix's own example, through the real probe: its output without the fix and with it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch
from partial_recordings import recording
from probed_examples import run_with

from torchdoctor.advice import candidates, catalogue

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


@pytest.mark.slow
@pytest.mark.parametrize("ident", FIXES)
def test_without_the_fix(ident: str, tmp_path: Path) -> None:
    if lacks_libraries(ident):
        pytest.skip(f"needs {FIXES[ident].EXAMPLE_NEEDS}")
    module = FIXES[ident]
    ran = run_with(module.EXAMPLE, {}, tmp_path, variables=given(module))
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == module.EXAMPLE_WITHOUT
    assert not ran.probe_errors


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


ADVICE = {i: m for i, m in FIXES.items() if candidates.advises_training(m)}
SHOWN = {**BY_HAND, **ADVICE}  # as code, whatever a run makes of it
OFFERS = [(i, n) for i, m in SHOWN.items() for n in range(len(m.OFFERS))]
REFUSES = [(i, n) for i, m in SHOWN.items() for n in range(len(m.REFUSES))]


@pytest.mark.parametrize(("ident", "number"), OFFERS)
def test_is_offered_with_what_to_write(ident: str, number: int) -> None:
    module = SHOWN[ident]
    over, text = module.OFFERS[number]
    seen = recording(over)
    assert module.refuses(seen) is None
    for settings in module.settings(seen) or [{}]:
        assert text in module.instruction(settings, seen)


@pytest.mark.parametrize(("ident", "number"), REFUSES)
def test_is_refused_with_a_reason(ident: str, number: int) -> None:
    over, text = SHOWN[ident].REFUSES[number]
    reason = SHOWN[ident].refuses(recording(over))
    assert reason is not None and text in reason
    assert reason.endswith(".") and "\n" not in reason


@pytest.mark.parametrize("ident", BY_HAND)
def test_what_is_by_hand_says_why_and_shows_both(ident: str) -> None:
    module = BY_HAND[ident]
    assert module.UNTRIED.endswith(".")
    assert module.OFFERS
    assert module.REFUSES
    assert module.refuses(recording()) is not None, "it must not be offered to everybody"


@pytest.mark.parametrize("ident", ADVICE)
def test_advice_on_training_is_tried_in_a_known_way_and_says_what_it_may_cost(ident: str) -> None:
    module = ADVICE[ident]
    assert module.TRIAL in ("range test", "loss")
    assert module.COSTS.endswith(".") and "\n" not in module.COSTS
    assert module.KEEPS_RESULTS == "changes training" and module.OFFERS and module.REFUSES
    assert module.refuses(recording()) is not None, "it must not be offered to everybody"
