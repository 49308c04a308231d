"""Calls whose source shows that each gives another result are no results to keep."""

from pathlib import Path

import pytest

from torchdoctor.edits.differing_calls import differs_each_call

LOOP = """
def table_of(x, size=4):
    return x + size

def main(edges):
    for step in range(9):
        {}
"""


def differs(folder: Path, source: str, function: str = "table_of") -> bool:
    script = folder / "train.py"
    script.write_text(source)
    return differs_each_call([str(script)], function)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("rewards = torch.randn(4); y = table_of(rewards)", True),
        ("values = model(edges); y = table_of(edges, values.detach())", True),
        ("y = table_of(edges[step])", True),
        ("y = table_of(edges)", False),
        ("y = table_of(edges, size=8)", False),
        ("for x in loader: table_of(x)\n        table_of(edges)", False),
        ("y = [table_of(edges) for x in loader]", False),
        ("pass", False),
    ],
)
def test_what_the_loop_makes_anew_gives_another_result(
    tmp_path: Path, body: str, expected: bool
) -> None:
    """ "Keep what advantages_of returns" stood beside advantages of new rewards."""
    assert differs(tmp_path, LOOP.format(body)) is expected


def test_what_an_outer_loop_makes_is_the_same_within_the_inner_one(tmp_path: Path) -> None:
    inner = "mask = mask_of(step)\n        for x in loader:\n            y = table_of(mask)"
    assert not differs(tmp_path, LOOP.format(inner))


@pytest.mark.parametrize(
    ("draw", "expected"),
    [
        ("random.sample(self.memory, size)", True),
        ("np.random.randint(size)", True),
        ("torch.randperm(size)", True),
        ("self.memory.tolist()", False),
    ],
)
def test_what_draws_random_numbers_gives_another_result(
    tmp_path: Path, draw: str, expected: bool
) -> None:
    source = f"class Buffer:\n    def batch(self, size):\n        return {draw}\n"
    assert differs(tmp_path, source, "batch") is expected
