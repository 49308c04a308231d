"""A sentence of a report says "1 kernel", not "1 kernels" or "39.0 calls"."""

import pytest

from torchdoctor.schema.figures import counted


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (1.0, "1 copy"),
        (1.04, "1 copy"),
        (0.5, "0.5 copies"),
        (2.5, "2.5 copies"),
        (3.0, "3 copies"),
        (39.4, "39 copies"),
        (12345.0, "12,345 copies"),
        (0.0, "0 copies"),
    ],
)
def test_numbers_with_their_noun(number: float, said: str) -> None:
    assert counted(number, "copy", "copies") == said


def test_most_nouns_take_an_s() -> None:
    assert (counted(1, "call"), counted(2, "call")) == ("1 call", "2 calls")
