import functools
import math
from dataclasses import replace

import pytest
import torch
from training_runs import losses

from torchdoctor.schema import (
    Environment,
    Fingerprint,
    Flags,
    LaunchTiming,
    ModelFacts,
    ProcessFacts,
    Recording,
    Workload,
    fact,
)
from torchdoctor.trials.numerics import Untouched, compare_training, trains_in_low_precision
from torchdoctor.trials.samples import Preparation

pytestmark = pytest.mark.slow
KINDS = ("mlp", "cnn", "lm")
SAME_DATA = [Fingerprint(input=f"x{n}", label=f"y{n % 10}") for n in range(64)]
OTHER_INPUTS = [replace(f, input=f"z{f.input}") for f in SAME_DATA]


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def launch(values, fingerprints=(), steps=50, **more):
    return LaunchTiming(
        ended="measured",
        losses=list(values),
        step_s=[0.1] * steps,
        fingerprints=list(fingerprints),
        **more,
    )


@functools.cache
def untouched(kind, seeds=(1, 2), low_precision=False):
    runs = [launch(losses(kind), SAME_DATA), launch(losses(kind), SAME_DATA)]
    others = [launch(losses(kind, seed=s)) for s in seeds]
    return Untouched(baselines=runs, seeds=others, warmup_steps=10, low_precision=low_precision)


def classify(kind, keeps="within rounding", seeds=(1, 2), fingerprints=SAME_DATA, **change):
    trial = launch(losses(kind, **change), fingerprints)
    return compare_training([trial], untouched(kind, seeds), keeps)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_run_is_identical(kind):
    found = classify(kind)
    assert found.classification == "identical"
    assert (found.why.fact, found.why.values["losses"]) == ("losses-identical", 60)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("cnn", {"double_sum": True}),
        ("lm", {"double_sum": True}),
        ("cnn", {"fused": True}),
        ("lm", {"fused": True}),
        ("mlp", {"fused": True}),
    ],
)
def test_another_order_of_summation_is_rounding(kind, change):
    assert losses(kind, **change) != losses(kind)
    assert classify(kind, seeds=(), **change).classification == "within-rounding"


@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_is_rounding_of_a_fix_that_lowers_precision(kind):
    found = classify(kind, keeps="lower precision", seeds=(), bf16=True)
    assert found.classification == "within-rounding"
    assert found.why.fact == "losses-apart-by-precision"


@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_is_not_what_a_fix_may_do_that_promises_rounding_only(kind):
    found = classify(kind, seeds=(), bf16=True)
    assert found.classification != "identical" and found.classification != "within-rounding"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "change",
    [
        {"lr": 1.5},
        {"lr": 1.1},
        {"lr": 0.0},
        {"every": 2},
        {"data": "each-twice"},
        {"shuffled_labels": True},
        {"data": "first-four"},
    ],
    ids=str,
)
def test_real_changes_are_never_rounding(kind, change):
    for keeps in ("exactly", "within rounding"):
        found = classify(kind, keeps, seeds=(), **change)
        assert found.classification in ("changed", "not-comparable"), (keeps, found.why)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", [{"lr": 1.5}, {"lr": 0.5}, {"every": 2}, {"lr": 0.0}], ids=str)
def test_another_update_is_caught_by_the_second_loss(kind, change):
    found = classify(kind, seeds=(), **change)
    assert found.classification == "changed" and not found.needs_seeds


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "change", [{"lr": 3.0}, {"lr": 0.2}, {"lr": 0.0}, {"shuffled_labels": True}], ids=str
)
def test_gross_changes_leave_the_band_of_seeds_even_without_fingerprints(kind, change):
    # In lower precision the second loss proves nothing, so only the band of seeds is left.
    found = classify(kind, keeps="lower precision", fingerprints=(), **change)
    assert found.classification == "changed"


@pytest.mark.parametrize("kind", KINDS)
def test_a_subtle_change_is_not_taken_for_low_precision(kind):
    found = classify(kind, keeps="lower precision", seeds=(), bf16=True, lr=1.5)
    assert found.classification == "not-comparable" and found.needs_seeds


@pytest.mark.parametrize("kind", KINDS)
def test_one_more_seed_is_seed_noise(kind):
    outside = 0
    for seed in range(3, 11):
        found = classify(kind, seed=seed, fingerprints=())
        assert found.classification in ("within-seed-noise", "changed")
        outside += found.classification == "changed"
    assert outside <= 1


def test_seeds_are_asked_for_where_only_they_can_tell():
    found = classify("cnn", seeds=(), seed=3, fingerprints=())
    assert found.classification == "not-comparable" and found.needs_seeds
    found = classify("cnn", seeds=(1, 2), seed=3, fingerprints=())
    assert found.classification == "within-seed-noise" and not found.needs_seeds


def test_augmentation_seeded_otherwise_is_seed_noise_and_said():
    augmented = [launch(losses("cnn", augment=a), SAME_DATA) for a in (1, 1)]
    seeds = [launch(losses("cnn", augment=a, seed=a)) for a in (2, 3)]
    reference = Untouched(baselines=augmented, seeds=seeds, warmup_steps=10)
    trial = launch(losses("cnn", augment=9), OTHER_INPUTS)
    found = compare_training([trial], reference, "within rounding")
    assert found.classification == "within-seed-noise"
    assert found.why.values["data"]["fact"] == "inputs-differ"


def test_inputs_that_differ_in_workers_though_none_are_drawn_at_random_are_a_change():
    """A dataset that counts in itself: workers count in copies."""
    runs = [launch(losses("cnn", augment=1), SAME_DATA)] * 2
    seeds = [launch(losses("cnn", augment=1, seed=a)) for a in (2, 3)]
    reference = Untouched(baselines=runs, seeds=seeds, warmup_steps=10)
    trial = launch(losses("cnn", augment=9), OTHER_INPUTS)
    how = Preparation(draws_random=False, elsewhere=True)
    found = compare_training([trial], reference, "within rounding", how)
    assert found.classification == "changed" and found.harmful
    assert found.why.fact == "data-changed"
    assert found.why.values["data"]["fact"] == "inputs-differ-by-state"
    drawn = Preparation(draws_random=True, elsewhere=True)
    found = compare_training([trial], reference, "within rounding", drawn)
    assert found.classification == "within-seed-noise"
    same = [launch(losses("cnn", augment=1), SAME_DATA)]
    assert compare_training(same, reference, how=how).classification == "identical"


def test_repeated_samples_are_harmful_whatever_the_losses_say():
    twice = [f for i in range(0, 64, 8) for f in SAME_DATA[i : i + 8] * 2][:64]
    found = compare_training([launch(losses("mlp"), twice)], untouched("mlp"))
    assert found.classification == "changed" and found.harmful
    assert found.why.values["data"] == {
        "fact": "samples-repeated",
        "values": {"repeated": 32, "samples": 64},
    }


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_harmful(broken):
    values = [*losses("mlp")[:30], broken, *losses("mlp")[31:]]
    found = compare_training([launch(values)], untouched("mlp"))
    assert found.classification == "changed" and found.harmful
    assert found.why == fact("loss-turned-not-finite", number=31, loss=str(broken))


def test_a_program_whose_own_loss_breaks_is_compared_until_then():
    values = [*losses("mlp")[:30], math.nan, math.nan]
    reference = Untouched(baselines=[launch(values)], warmup_steps=10)
    assert compare_training([launch(values)], reference).classification == "identical"


def test_skipped_backwards_are_a_change():
    found = compare_training([launch(losses("mlp")[::2])], untouched("mlp"))
    assert found.classification == "changed" and found.why.fact == "other-backwards"


def test_a_longer_warm_up_is_no_change():
    """More workers have more batches ready, which are used up before their window begins."""
    trial = replace(launch(losses("mlp"), steps=20), iterations=60)
    assert compare_training([trial], untouched("mlp")).classification == "identical"


def test_a_shorter_window_is_no_change():
    found = compare_training([launch(losses("mlp")[:30], steps=20)], untouched("mlp"))
    assert found.classification == "identical"


def test_backwards_without_a_loss_are_left_out():
    def gappy(values):
        return [None if i % 2 else v for i, v in enumerate(values)]

    reference = Untouched(baselines=[launch(gappy(losses("mlp")))], warmup_steps=10)
    found = compare_training([launch(gappy(losses("mlp")))], reference)
    assert found.classification == "identical" and found.why.values["losses"] == 30
    nothing = launch([None] * 60)
    assert compare_training([nothing], reference).classification == "not-comparable"


def test_too_few_losses_are_not_comparable():
    short = launch([1.0] * 4, steps=4)
    found = compare_training([short], Untouched(baselines=[short]))
    assert found.classification == "not-comparable" and not found.needs_seeds


def test_the_worst_launch_counts():
    good, bad = launch(losses("mlp"), SAME_DATA), launch(losses("mlp", lr=3.0), SAME_DATA)
    assert compare_training([good, bad, good], untouched("mlp")).classification == "changed"


def test_runs_of_one_seed_that_differ_widen_what_rounding_may_do():
    base = losses("cnn")
    jittered = [
        launch([v * (1 + 2e-4 * math.sin(7 * i + k)) for i, v in enumerate(base)]) for k in (0, 1)
    ]
    trial = launch([v * (1 + 2e-4 * math.sin(7 * i + 2)) for i, v in enumerate(base)])
    strict = Untouched(baselines=[launch(base)], warmup_steps=10)
    loose = Untouched(baselines=jittered, warmup_steps=10)
    assert compare_training([trial], strict).classification != "within-rounding"
    found = compare_training([trial], loose)
    assert found.classification == "within-rounding"
    assert found.why.fact == "losses-apart-as-two-runs"


def test_an_unseeded_program_is_held_to_its_own_band():
    reference = Untouched(
        baselines=[launch(losses("cnn", seed=s)) for s in (0, 1, 2, 3)], warmup_steps=10
    )
    trial = launch(losses("cnn", seed=4))
    assert compare_training([trial], reference).classification == "within-seed-noise"
    frozen = launch(losses("cnn", seed=4, lr=0.0))
    assert compare_training([frozen], reference).classification == "changed"


def test_low_precision_of_the_program_itself_is_seen():
    def recording(model=None, flags=None, device="cpu"):
        facts = ModelFacts(ident=0, device=device, **(model or {}))
        process = ProcessFacts(pid=1, models=[facts], flags=flags or Flags())
        return Recording(
            workload=Workload(command=[], cwd=""), environment=Environment(), processes=[process]
        )

    assert not trains_in_low_precision(recording({"dtypes": ["float32"]}))
    assert trains_in_low_precision(recording({"dtypes": ["bfloat16"]}))
    assert trains_in_low_precision(recording({"autocast_forwards": 3}))
    assert not trains_in_low_precision(recording(flags=Flags(matmul_tf32=True)))
    assert trains_in_low_precision(recording(flags=Flags(matmul_tf32=True), device="cuda:0"))
    assert trains_in_low_precision(recording({"conv2d": 2}, device="cuda:0"))
