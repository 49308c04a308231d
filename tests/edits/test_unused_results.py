import textwrap

import pytest

from torchdoctor.edits.unused_results import holds_collectives, only_reported, reporter

METRIC = """
class Metric:
    def compute(self):
        order = self.scores.argsort()
        return order.sum()

"""


@pytest.mark.parametrize(
    ("loop", "reported"),
    [
        ("auc = metric.compute()\n    if step % 9 == 0:\n        print(step, float(auc))", True),
        ("metric.compute()", True),
        ("print(metric.compute())", True),
        ("auc = metric.compute()\n    loss = loss * auc", False),
        ("if metric.compute() > 1:\n        break", False),
        ("self.auc = metric.compute()", False),
        ("loss = model(x)", False),
    ],
)
def test_a_result_that_training_reads_is_not_only_reported(tmp_path, loop, reported):
    script = tmp_path / "train.py"
    script.write_text(f"{METRIC}for step in range(9):\n    {loop}\n")
    assert only_reported([str(script)], "compute") is reported


@pytest.mark.parametrize(
    "body",
    ["self.count = 1", "self.kept.append(1)", "self.scores.add_(1)", "self.kept[0] = 1"],
)
def test_a_function_that_changes_something_is_never_skipped(tmp_path, body):
    script = tmp_path / "train.py"
    text = f"class Metric:\n    def compute(self):\n        {body}\n\nmetric.compute()\n"
    script.write_text(textwrap.dedent(text))
    assert not only_reported([str(script)], "compute")


@pytest.mark.parametrize(
    ("loop", "found"),
    [
        ("print(rate_of(x))", "rate_of"),
        ("loss = loss * rate_of(x)", None),
        ("print(rate_of(x), distance(x))", None),
    ],
)
def test_what_a_report_calls_is_reported_through_it(tmp_path, loop, found):
    script = tmp_path / "train.py"
    functions = "def distance(x):\n    return x\n\ndef rate_of(x):\n    return 2 * distance(x)\n"
    script.write_text(f"{functions}\nfor x in range(9):\n    {loop}\n")
    expected = None if found is None else (str(script), found)
    assert reporter([str(script)], "distance") == expected


@pytest.mark.parametrize(
    ("body", "holds"),
    [
        ("dist.all_gather_object(everyone, x)", True),
        ("return inner(x)", True),
        ("return float(x)", False),
        ("return outer(x)", False),
    ],
)
def test_ranks_that_meet_within_a_call_are_seen_through_what_it_calls(tmp_path, body, holds):
    script = tmp_path / "train.py"
    inner = "def inner(x):\n    dist.all_reduce(x)\n    return x\n"
    script.write_text(f"{inner}\ndef outer(x):\n    {body}\n\nouter(1)\n")
    assert holds_collectives([str(script)], "outer") is holds
