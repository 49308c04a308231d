"""Every fix's own example, through the real probe: its output without the fix and with it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from partial_recordings import recording
from probed_examples import Ran, run_with

from torchdoctor.advice import catalogue
from torchdoctor.reports import trial_facts

BY_HAND = {i: fix for i, fix in catalogue.fixes().items() if fix.untried}
FIXES = {i: fix for i, fix in catalogue.fixes().items() if not fix.untried}
EXAMPLES = {i: fix.example for i, fix in FIXES.items() if fix.example is not None}
NEEDS_CUDA = [i for i, example in EXAMPLES.items() if example.needs == "cuda"]
ANYWHERE = [i for i in EXAMPLES if i not in NEEDS_CUDA]


def run_example(ident: str, folder: Path, fixed: bool) -> Ran:
    example = EXAMPLES[ident]
    lacking = [name for name in example.needs.split() if name != "cuda" and not find_spec(name)]
    if lacking:
        pytest.skip(f"needs {lacking}")
    fixes = {ident: example.settings} if fixed else {}
    ran = run_with(example.program, fixes, folder, variables=example.environment)
    assert ran.returncode == 0, ran.stderr
    return ran


@pytest.mark.slow
@pytest.mark.parametrize("ident", EXAMPLES)
def test_without_the_fix(ident: str, tmp_path: Path) -> None:
    ran = run_example(ident, tmp_path, fixed=False)
    assert ran.stdout == EXAMPLES[ident].without
    assert not ran.probe_errors


@pytest.mark.slow
@pytest.mark.parametrize("ident", ANYWHERE)
def test_with_the_fix(ident: str, tmp_path: Path) -> None:
    ran = run_example(ident, tmp_path, fixed=True)
    if lack := FIXES[ident].lack(recording({"environment": {"torch": torch.__version__}})):
        assert ran.applied[ident]["state"] == "refused" and ran.applied[ident]["why"]
        pytest.skip(lack)
    assert ran.applied[ident]["state"] == "applied", ran.applied
    assert ran.stdout == EXAMPLES[ident].with_fix
    assert not ran.probe_errors


@pytest.mark.slow
@pytest.mark.parametrize("ident", NEEDS_CUDA)
@pytest.mark.skipif(torch.cuda.is_available(), reason="here the fix applies")
def test_refused_in_the_program_without_a_gpu(ident: str, tmp_path: Path) -> None:
    ran = run_example(ident, tmp_path, fixed=True)
    assert ran.applied[ident]["state"] == "refused"
    sentence = FIXES[ident].sentences[ran.applied[ident]["why"]["fact"]]
    assert "CUDA" in sentence or "GPU" in sentence
    assert ran.stdout == EXAMPLES[ident].without


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("ident", NEEDS_CUDA)
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_with_the_fix_on_a_gpu(ident: str, tmp_path: Path) -> None:
    ran = run_example(ident, tmp_path, fixed=True)
    if lack := FIXES[ident].lack(recording({"environment": {"torch": torch.__version__}})):
        assert ran.applied[ident]["state"] == "refused" and ran.applied[ident]["why"]
        pytest.skip(lack)
    assert ran.applied[ident]["state"] == "applied", ran.applied
    assert ran.stdout == EXAMPLES[ident].with_fix


ADVICE = {i: fix for i, fix in catalogue.fixes().items() if fix.training is not None}
SHOWN = {**BY_HAND, **ADVICE}  # as code, whatever a run makes of it
OFFERS = [(i, n) for i, fix in SHOWN.items() for n in range(len(fix.offers))]
REFUSALS = [(i, n) for i, fix in SHOWN.items() for n in range(len(fix.refusals))]


@pytest.mark.parametrize(("ident", "number"), OFFERS)
def test_is_offered_with_what_to_write(ident: str, number: int) -> None:
    fix = SHOWN[ident]
    over, text = fix.offers[number]
    seen = recording(over)
    assert fix.refuses(seen) is None
    for settings in fix.settings(seen) or [{}]:
        assert text in fix.instruction(settings, seen)


@pytest.mark.parametrize(("ident", "number"), REFUSALS)
def test_is_refused_with_a_reason(ident: str, number: int) -> None:
    over, told = SHOWN[ident].refusals[number]
    why = SHOWN[ident].refuses(recording(over))
    assert why is not None and why.fact == told
    sentence = trial_facts.refusal(why, ident)
    assert sentence.endswith(".") and "\n" not in sentence


@pytest.mark.parametrize("ident", SHOWN)
def test_what_is_shown_as_code_is_not_offered_to_everybody(ident: str) -> None:
    assert SHOWN[ident].offers and SHOWN[ident].refusals
    assert SHOWN[ident].refuses(recording()) is not None


@pytest.mark.parametrize("ident", BY_HAND)
def test_what_is_by_hand_says_why(ident: str) -> None:
    assert BY_HAND[ident].untried.endswith(".")


@pytest.mark.parametrize("ident", ADVICE)
def test_advice_on_training_says_what_it_may_cost(ident: str) -> None:
    training = ADVICE[ident].training
    assert training is not None
    assert training.costs.endswith(".") and "\n" not in training.costs
    assert ADVICE[ident].keeps_results == "changes training"
