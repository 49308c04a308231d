"""The gradient noise scale against distributions of gradients whose scale is known."""

from __future__ import annotations

import numpy as np
import pytest
from partial_recordings import recording
from told_facts import why

from torchdoctor.advice import catalogue
from torchdoctor.queries.gradient_noise import from_products, noise_scale
from torchdoctor.runs.report_assembly import RunResults, assemble
from torchdoctor.runs.run_settings import RunSettings
from torchdoctor.schema import Diagnosis, FixSet, Refused, fact

BATCH = 16


def products(scale: float, gradients: int, seed: int, size: int = 400) -> list[list[float]]:
    """Inner products of gradients of `BATCH` samples where tr(S) / |G|^2 is `scale`."""
    rng = np.random.default_rng(seed)
    true = np.ones(size)  # |G|^2 is `size`, and so each element's variance is `scale`
    table = true + rng.normal(0.0, (scale / BATCH) ** 0.5, (gradients, size))
    found: list[list[float]] = (table @ table.T).tolist()
    return found


@pytest.mark.parametrize("scale", [2.0, 40.0, 400.0])
def test_the_interval_holds_the_true_scale(scale: float) -> None:
    held = 0
    for seed in range(60):
        found = from_products(products(scale, 12, seed), BATCH)
        assert found is not None
        held += found.low <= scale <= (np.inf if found.high is None else found.high)
    assert held >= 52, "95 % of 60 are 57"


def test_gradients_that_are_all_noise_have_no_upper_end() -> None:
    found = from_products(products(1e6, 8, 0), BATCH)
    assert found is not None and found.high is None
    assert "above" in found.words()


def test_too_few_or_broken_gradients_say_nothing() -> None:
    assert from_products(products(40.0, 3, 0), BATCH) is None
    table = products(40.0, 8, 0)
    table[2][3] = float("nan")
    assert from_products(table, BATCH) is None


def seen(**flags: int):
    loader = {"ident": 0, "batches": 60, "batch_size": 64, "dataset_length": 5000}
    process = {
        "pid": 1,
        "loaders": [loader],
        "optimizers": [{"ident": 0, "cls": "torch.optim.adam.Adam", "steps": 60, "lr": 0.1}],
        "gradient_products": products(40.0, 12, 1),
        "flags": flags,
    }
    return recording({"processes": [process], "steps": {"samples_per_step": 16.0}})


def test_the_useful_limit_is_named_and_kept_to() -> None:
    fix = catalogue.fixes()["larger-batch"]
    found = noise_scale(seen())
    assert found is not None and found.estimate == pytest.approx(40.0, rel=0.3)
    refused = fix.refuses(seen())
    assert refused is not None and refused.fact == "beyond-noise-scale", "128 is far above 40"
    clipped = seen(clip_calls=10)
    assert noise_scale(clipped) is None, "a clipped gradient has lost its norm"
    assert fix.refuses(clipped) is None
    text = fix.instruction({"batch_size": 128}, seen())
    assert "useful up to the gradient noise scale, about" in text
    assert "lr=0.141" in text


def test_the_report_names_it_whatever_came_of_the_trial() -> None:
    report = assemble(
        RunResults(
            recording=seen(),
            diagnosis=Diagnosis(bottleneck="none"),
            trials=None,
            refused=[
                Refused(fixes=FixSet.of("larger-batch"), why=fact("changes-training")),
                Refused(fixes=FixSet.of("tf32"), why=fact("no-gpu")),
            ],
            settings=RunSettings(),
        )
    )
    larger, other = report.trials
    assert why(larger) == ["changes-training", "noise-scale"]
    assert why(other) == ["no-gpu"]
