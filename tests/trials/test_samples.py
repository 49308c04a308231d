import random
from dataclasses import replace

import pytest

from torchdoctor.schema import Fingerprint, fact
from torchdoctor.trials.samples import Preparation, compare_samples


def prints(numbers, inputs="x", labels=10):
    return [Fingerprint(input=f"{inputs}{n}", label=f"y{n % labels}") for n in numbers]


def others(fingerprints):
    """The same labels with inputs that were prepared in another way."""
    return [replace(f, input=f"other {f.input}") for f in fingerprints]


BASE = prints(random.Random(1).sample(range(10_000), 80))


def test_the_same_sequence_also_beside_a_longer_one():
    assert compare_samples(BASE, [BASE, BASE]).state == "same"
    assert compare_samples(BASE + prints([1]), [BASE]).state == "same"


def test_another_order_of_the_same_samples():
    shuffled = random.Random(2).sample(BASE, len(BASE))
    assert compare_samples(shuffled, [BASE]).state == "reordered"


def test_workers_that_do_not_shard_repeat_samples():
    batches = [BASE[i : i + 8] for i in range(0, 80, 8)]
    twice = [f for batch in batches for f in batch * 2][:80]
    found = compare_samples(twice, [BASE])
    assert found.state == "corrupt"
    assert found.why == fact("samples-repeated", repeated=40, samples=80)


def test_dropped_and_foreign_samples():
    dropped = BASE[:10] + BASE[18:] + prints(range(20_000, 20_008))
    assert compare_samples(dropped, [BASE]).state == "corrupt"
    foreign = BASE[:40] + prints(range(20_000, 20_040), inputs="z")
    assert compare_samples(foreign, [BASE]).state == "corrupt"


def test_shuffled_labels_are_foreign_samples():
    labels = [f.label for f in BASE]
    random.Random(3).shuffle(labels)
    wrong = [replace(f, label=label) for f, label in zip(BASE, labels, strict=True)]
    assert compare_samples(wrong, [BASE]).state == "corrupt"


def test_augmentation_seeded_otherwise_keeps_the_labels():
    augmented = others(BASE)
    found = compare_samples(augmented, [BASE])
    assert found.state == "labels-same"
    assert found.why == fact("inputs-differ")


@pytest.mark.parametrize(
    ("draws", "state", "why"),
    [
        (True, "labels-same", "inputs-differ-by-augmentation"),
        (None, "labels-same", "inputs-differ-in-workers"),
        (False, "stateful", "inputs-differ-by-state"),
    ],
)
def test_other_inputs_of_workers_are_augmentation_only_where_random_numbers_are_drawn(
    draws, state, why
):
    other = others(BASE)
    found = compare_samples(other, [BASE], how=Preparation(draws_random=draws, elsewhere=True))
    assert found.state == state
    assert found.why == fact(why)


def test_inputs_of_a_fix_that_leaves_the_loader_alone_say_nothing_of_the_dataset():
    """Another rounding of the inputs is no state, though nothing is drawn."""
    other = others(BASE)
    assert compare_samples(other, [BASE], how=Preparation(draws_random=False)).state == (
        "labels-same"
    )


def test_equal_labels_that_say_nothing_do_not_excuse_other_inputs():
    one_class = prints(range(80), labels=1)
    other = prints(range(100, 180), labels=1)
    assert compare_samples(other, [one_class]).state == "corrupt"
    none = [Fingerprint(input=f"x{n}") for n in range(80)]
    assert compare_samples(others(none), [none]).state == "corrupt"


def test_one_input_under_all_labels_is_no_augmentation():
    stuck = [replace(f, input="x0") for f in BASE]
    assert compare_samples(stuck, [BASE]).state == "corrupt"


def test_a_program_whose_own_order_varies_is_held_to_repeats_only():
    runs = [prints(random.Random(s).sample(range(10_000), 80)) for s in range(3)]
    assert compare_samples(runs[2], runs[:2]).state == "varies"
    assert compare_samples(runs[2][:40] * 2, runs[:2]).state == "corrupt"


@pytest.mark.parametrize("trial", [[], BASE[:5]])
def test_too_few_fingerprints_say_nothing(trial):
    assert compare_samples(trial, [BASE]).state == "unknown"
    assert compare_samples(BASE, [trial]).state == "unknown"


def test_an_order_given_up_on_purpose_may_bring_later_samples_first():
    """Batch 9, which took long, comes after the window; batch 10 came in its place."""
    later = BASE[:64] + prints(range(20_000, 20_008)) + BASE[72:]
    assert compare_samples(later, [BASE]).state == "corrupt"
    found = compare_samples(later, [BASE], how=Preparation(reorders=True))
    assert found.state == "reordered"
    assert found.why == fact("samples-reordered-by-design", shared=72, samples=80)
    repeated = BASE[:64] + BASE[:8] + BASE[72:]
    assert compare_samples(repeated, [BASE], how=Preparation(reorders=True)).state == "corrupt"
