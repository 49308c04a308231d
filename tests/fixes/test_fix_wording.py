"""A fix as code: whatever settings it is given, it costs no report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import test_patches
from made_specs import made_fix
from made_tensors import tensor_row
from partial_recordings import recording

from torchdoctor.advice import catalogue
from torchdoctor.advice.wording import wording, wording_for_trace
from torchdoctor.schema import Recording, fact

LOADER = {
    "ident": 0,
    "batch_size": 4,
    "num_workers": 1,
    "dataset_cls": "Images",
    "location": {"file": "/w/train.py", "line": 9},
    "batch_tensors": [[tensor_row(4, 3, 8, 8)]],
}
MODEL = {
    "cls": "Net",
    "device": "cuda:0",
    "ident": 0,
    "parameters": 100,
    "forwards": 9,
}
PROGRAMS: list[dict[str, Any]] = [
    {},
    {"processes": [{"pid": 1, "loaders": [LOADER]}]},
    {"processes": [{"pid": 1, "loaders": [{**LOADER, "iterable": True}], "models": [MODEL]}]},
    {
        "environment": {"gpus": [{"index": 0, "name": "NVIDIA A100"}]},
        "processes": [{"pid": 1, "loaders": [LOADER], "models": [MODEL]}],
        "trace": {"path": "t.json", "steps": 3, "step_s": 0.01},
    },
]


def programs(folder: Path) -> list[Recording]:
    return [*map(recording, PROGRAMS), test_patches.recording(folder)]


@pytest.mark.parametrize("ident", catalogue.fixes())
def test_every_fix_can_be_written_with_its_own_settings(ident: str, tmp_path: Path) -> None:
    fix = catalogue.fixes()[ident]
    for program in programs(tmp_path):
        assert not wording_for_trace(fix, program).failures
        if fix.refuses(program) is None:
            for settings in fix.settings(program):
                words = wording(fix, settings, program)
                assert words.instruction and not words.failures


NEWER = [i for i, fix in catalogue.fixes().items() if fix.least_torch > (2, 4)]


@pytest.mark.parametrize("ident", NEWER)
def test_code_that_the_programs_torch_lacks_is_not_handed_out(ident: str) -> None:
    """With torch 2.4 the lines of fsdp ended with an ImportError."""
    fix = catalogue.fixes()[ident]
    old, new = (
        recording({"processes": [{"pid": 1, "torch": version}]})
        for version in ("2.4.1+cu121", "{}.{}.0a0+git1".format(*fix.least_torch))
    )
    lack = fix.lack(old)
    assert lack is not None and lack.values["torch"] == "2.4"
    assert fix.refusal(old) is not None
    assert wording_for_trace(fix, old).instruction is None
    assert fix.lack(new) is None and fix.lack(recording()) is None
    assert wording_for_trace(fix, new).instruction


@pytest.mark.parametrize("ident", catalogue.fixes())
def test_no_settings_and_no_reason_to_apply_cost_no_report(ident: str, tmp_path: Path) -> None:
    """A setting that was missing ended a run of --no-fixes with exit code 70."""
    fix = catalogue.fixes()[ident]
    for program in programs(tmp_path):
        for settings in [{}, fix.example.settings if fix.example else {}]:
            words = wording(fix, settings, program)
            assert all(failure.values["fix"] == ident for failure in words.failures)


def no_line(recording: Recording) -> None:
    raise IndexError("no line")


BROKEN = made_fix(
    "broken",
    page="""Set it.

    Make it permanent
    -----------------
        set(it)

    Sources
    -------
    """,
    instruction=lambda settings, recording: str(settings["number"]),
    location=no_line,
)


def test_a_fix_that_fails_to_word_itself_shows_its_page_and_says_so() -> None:
    words = wording(BROKEN, {}, recording())
    assert words.instruction == "set(it)"
    assert [failure.values["part"] for failure in words.failures] == ["instruction", "location"]
    values = {"part": "instruction", "fix": "broken", "error": "KeyError: 'number'"}
    assert words.failures[0] == fact("fix-not-worded", **values)


@pytest.mark.parametrize(
    ("ident", "over", "settings"),
    [
        (
            "loader-workers",
            {"processes": [{"pid": 1, "loaders": [{**LOADER, "batches": 9, "iterable": True}]}]},
            {"num_workers": 1},
        ),
        ("eval-mode", {"steps": {"boundary": {"kind": "forward", "learned_by": "forward"}}}, {}),
    ],
)
def test_a_part_of_a_page_that_is_offered_stands_in_the_page(
    ident: str, over: dict[str, Any], settings: dict[str, Any]
) -> None:
    """`explain` and the report would give two versions of the same code."""
    fix = catalogue.fixes()[ident]
    offered = fix.instruction(settings, recording(over)).splitlines()
    page = fix.permanent_form.splitlines()
    assert set(offered[-6:]) & set(page) == {*offered[-6:]}


def test_commands_of_another_allocator_are_those_of_its_page() -> None:
    fix = catalogue.fixes()["allocator"]
    on_gpu = {"trace": {"path": "t.json", "steps": 1, "has_device": True}}
    assert fix.advice is not None
    assert [fix.advice(recording(over)) for over in ({}, on_gpu)] == fix.permanent_form.splitlines()
