"""Long steps are said in a unit that shows them."""

import pytest
from partial_recordings import recording

from torchdoctor.checks import step_outliers


@pytest.mark.parametrize(
    ("median_s", "p99_s", "shown"),
    [
        (38.7e-6, 352e-6, ("352 us", "38.7 us")),
        (0.008, 0.2, ("200 ms", "8 ms")),
        (0.4, 12.34, ("12.3 s", "400 ms")),
    ],
)
def test_times_of_any_size_are_not_rounded_to_nothing(
    median_s: float, p99_s: float, shown: tuple[str, str]
) -> None:
    steps = {"median_s": median_s, "mean_s": 1.2 * median_s, "p99_s": p99_s}
    said = step_outliers.CHECK.findings(recording({"steps": steps}))[0].evidence[0]
    assert all(f" {text} " in said for text in shown), said
