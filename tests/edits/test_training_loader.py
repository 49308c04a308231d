"""Which construction of a loader is edited: the one that feeds the training, or none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from torchdoctor.edits import KeywordEdit
from torchdoctor.edits.calls import loader_edits, loader_location
from torchdoctor.edits.diff import edited_files
from torchdoctor.schema import (
    Boundary,
    Environment,
    LoaderFacts,
    Location,
    ProcessFacts,
    Recording,
    StepStatistics,
    Workload,
)


def made(ident: int, line: int, batches: int = 0, **more: Any) -> LoaderFacts:
    known = {"batch_size": 8, "dataset_cls": "app.Images", "dataset_length": 512, "shuffles": None}
    where = Location(file="/w/train.py", line=line, through=more.pop("through", None))
    return LoaderFacts(ident=ident, location=where, batches=batches, **(known | more))


def recording(*loaders: LoaderFacts, steps_by: int) -> Recording:
    boundary = Boundary(kind="loader", ident=steps_by)
    statistics = StepStatistics(
        boundary=boundary, steps=9, warmup_steps=1,
        median_s=0.1, mean_s=0.1, p10_s=0.1, p90_s=0.1,
    )  # fmt: skip
    return Recording(
        workload=Workload(command=["train.py"], cwd="/w", script="/w/train.py"),
        environment=Environment(),
        processes=[ProcessFacts(pid=1, loaders=list(loaders))],
        steps=statistics,
    )


def edited_lines(seen: Recording) -> list[int]:
    edits = loader_edits(seen, num_workers=2)
    return [edit.line for edit in edits if isinstance(edit, KeywordEdit)]


def test_a_validation_loader_that_never_ran_is_no_origin_of_the_training_loader() -> None:
    """Both are the user's own: what was made earlier over as many samples is another loader."""
    seen = recording(made(0, line=3), made(1, line=4, batches=9), steps_by=1)
    assert edited_lines(seen) == [4]


@pytest.mark.parametrize("first", [0, 1])
def test_what_prepare_made_of_two_alike_is_not_guessed(first: int) -> None:
    """Accelerate wraps both; nothing says which of the two became the training loader."""
    seen = recording(
        made(0, line=3), made(1, line=4),
        made(2, line=5, batches=9 * (first == 0), through="accelerate"),
        made(3, line=5, batches=9 * (first == 1), through="accelerate"),
        steps_by=2 + first,
    )  # fmt: skip
    assert edited_lines(seen) == []
    where = loader_location(seen)
    assert where is not None and where.line == 5


@pytest.mark.parametrize(
    ("training", "validation"),
    [
        ({"shuffles": True}, {"shuffles": False}),
        ({"batch_size": 4}, {"batch_size": 16}),
        ({"dataset_length": 400}, {"dataset_length": 100}),
        ({"dataset_cls": "app.Augmented"}, {"dataset_cls": "app.Images"}),
    ],
)
def test_facts_tell_the_training_loader_from_its_twin(
    training: dict[str, Any], validation: dict[str, Any]
) -> None:
    seen = recording(
        made(0, line=3, **validation), made(1, line=4, **training),
        made(2, line=5, batches=9, through="accelerate", **training),
        made(3, line=5, through="accelerate", **validation),
        steps_by=2,
    )  # fmt: skip
    assert edited_lines(seen) == [4]


def test_two_made_by_one_line_are_one_construction() -> None:
    """A function, a comprehension or a dictionary makes both: its call is the only place."""
    seen = recording(
        made(0, line=3), made(1, line=3),
        made(2, line=5, batches=9, through="accelerate"),
        made(3, line=5, through="accelerate"),
        steps_by=2,
    )  # fmt: skip
    assert edited_lines(seen) == [3]


@pytest.mark.parametrize(
    ("source", "ok"),
    [
        ("loaders = [DataLoader(x) for x in (train, held_back)]\n", True),
        ("loaders = {\n  'a': DataLoader(train), 'b': DataLoader(held_back)}\n", False),
        ("a, b = DataLoader(train), DataLoader(held_back)\n", False),
    ],
)
def test_a_line_with_two_calls_is_not_edited(source: str, ok: bool, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(source)
    line = source[: source.index("DataLoader")].count("\n") + 1
    edit = KeywordEdit(
        file=str(path), line=line, callee="DataLoader", keyword="num_workers", value="2"
    )
    assert (edited_files([edit]) is not None) == ok
