"""A set of fixes with their settings: equality, order, and its way into report.json and back."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import samples

from torchdoctor.schema import FixSet
from torchdoctor.schema.errors import UsageError
from torchdoctor.schema.figures import fixes_with_settings
from torchdoctor.schema.record_files import decode_report, encode

WORKERS = {"num_workers": 4}


def test_order_is_kept_and_does_not_count() -> None:
    one = FixSet({"loader-workers": WORKERS, "set-to-none": {}})
    other = FixSet([("set-to-none", {}), ("loader-workers", WORKERS)])
    assert one == other and hash(one) == hash(other)
    assert one.ids == ("loader-workers", "set-to-none") != other.ids
    assert one != FixSet({"loader-workers": {"num_workers": 2}, "set-to-none": {}})
    assert (one.first, one.only, other.limited_to(["set-to-none"]).only) == (
        "loader-workers", None, "set-to-none",
    )  # fmt: skip
    assert one.ordered_by(["set-to-none"]).ids == other.ids


def test_a_set_is_not_changed_by_who_made_it() -> None:
    settings = dict(WORKERS)
    made = FixSet.of("loader-workers", settings)
    settings["num_workers"] = 8
    assert made == {"loader-workers": WORKERS}
    assert (
        made.with_settings("loader-workers", settings)
        != made
        == FixSet.of("loader-workers", WORKERS)
    )


def test_joined_sets_keep_the_first_ones_settings() -> None:
    first = FixSet.of("loader-workers", WORKERS)
    second = FixSet({"cpu-threads": {"threads": 2}, "loader-workers": {"num_workers": 8}})
    joined = first.joined(second)
    assert fixes_with_settings(joined) == (
        "loader-workers (num_workers=4) + cpu-threads (threads=2)"
    )


def test_report_json_has_an_object_for_each_set() -> None:
    report = samples.loader_bound()
    outline = json.loads(encode(report))
    assert outline["trials"][0]["fixes"] == dict(report.trials[0].fixes)
    assert decode_report(encode(report)).trials == report.trials


def test_a_report_of_schema_1_is_read_as_one_of_today() -> None:
    report = samples.loader_bound()
    several = FixSet({"loader-workers": WORKERS, "set-to-none": {}})
    trials = [report.trials[0], replace(report.trials[1], fixes=several, reason="no time")]
    outline = json.loads(encode(replace(report, trials=trials)))
    outline["schema_version"] = "1.0"
    single, stack = outline["trials"]
    [(single["fix"], single["settings"])] = single.pop("fixes").items()
    stack["fix"], stack["settings"] = "loader-workers + set-to-none", stack.pop("fixes")
    stack["reason"] = "not tried: no time"
    read = decode_report(json.dumps(outline)).trials
    assert [trial.why[0].sentence for trial in read if trial.why] == ["no time"]
    assert [replace(trial, why=[]) for trial in read] == trials


@pytest.mark.parametrize("fixes", [[], {"loader-workers": 4}, "loader-workers"])
def test_a_damaged_set_is_said_to_be_damaged(fixes: object) -> None:
    outline = json.loads(encode(samples.loader_bound()))
    outline["trials"][0]["fixes"] = fixes
    with pytest.raises(UsageError, match="damaged"):
        decode_report(json.dumps(outline))
