"""The code that decoded-cache offers does what the fix did: it hands out copies."""

from __future__ import annotations

import copy
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from made_tensors import tensor_row
from partial_recordings import recording

from torchdoctor.advice import catalogue
from torchdoctor.edits.diff import edited_files
from torchdoctor.reports import trial_facts
from torchdoctor.schema import fact, within

FIX = catalogue.fixes()["decoded-cache"]


def _data_set(code: str) -> Any:
    names: dict[str, Any] = {"copy": copy, "torch": torch}
    exec(code, names)

    class Images:
        def __init__(self) -> None:
            self.decoded = 0

        def _make_sample(self, index: int) -> list[int]:
            self.decoded += 1
            return [index]

        __getitem__ = names["__getitem__"]
        _copy_of = names["_copy_of"]

    return Images()


def test_what_changes_a_sample_changes_no_later_one() -> None:
    loader = {"ident": 0, "batches": 9, "dataset_cls": "__main__.Images"}
    code = FIX.instruction({}, recording({"processes": [{"pid": 1, "loaders": [loader]}]}))
    images = _data_set(code)
    images[3].append("augmented in place")
    assert images[3] == [3]
    assert images.decoded == 1
    assert "persistent_workers=True" in code


def _offered_for(**facts: Any) -> str:
    loader = {"ident": 0, "batches": 9, "dataset_cls": "__main__.Images", **facts}
    return FIX.instruction({}, recording({"processes": [{"pid": 1, "loaders": [loader]}]}))


def test_code_without_a_limit_says_what_it_takes_of_the_memory() -> None:
    images = tensor_row(32, 3, 64, 64)
    known = {"dataset_length": 50_000, "batch_size": 32, "batch_tensors": [[images]]}

    def memory(offered: str) -> str:
        [line] = [
            line for line in offered.splitlines() if line.startswith("#") and "memory" in line
        ]
        return line

    said = memory(_offered_for(**known))
    assert "50000" in said and "2.5 GB" in said and "worker" not in said
    of_each = memory(_offered_for(**known, num_workers=2))
    assert "2.5 GB" in of_each and "worker" in of_each
    small = {"dataset_length": 8, "batch_size": 4, "batch_tensors": [[tensor_row(4, 10)]]}
    assert " 0 MB" in memory(_offered_for(**small))
    assert not re.search(r"\d", memory(_offered_for())), "nothing is known of how much it takes"


def test_it_is_placed_where_samples_are_made(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "class Images:\n    def __getitem__(self, index):\n        return index\n"
        "loader = DataLoader(Images())\n"
    )
    loader = {"ident": 0, "batches": 9, "dataset_cls": "__main__.Images"}
    seen = recording(
        {
            "workload": {"command": [], "cwd": str(tmp_path), "script": str(script)},
            "processes": [{"pid": 1, "loaders": [loader]}],
        }
    )
    assert FIX.location(seen).line == 2
    assert "# In Images:" in FIX.instruction({}, seen)


IMAGES = """from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    # Read anew each time.
    def __getitem__(self, number: int) -> list[int]:
        self.made = getattr(self, "made", 0) + 1
        return [number]
"""


def _edits_of(
    tmp_path: Path, module: str = "__main__", trains: str = "train.py", **facts: Any
) -> list[Any]:
    loader = {"ident": 0, "batches": 9, "dataset_cls": f"{module}.Images", **facts}
    script = {"command": [], "cwd": str(tmp_path), "script": str(tmp_path / "train.py")}
    flags = {"backward_location": {"file": str(tmp_path / trains), "line": 2}}
    own = {"pid": 1, "loaders": [loader], "flags": flags}
    return FIX.edits({"limit_bytes": 4000}, recording({"workload": script, "processes": [own]}))


SMALL_BATCH = [tensor_row(4, 5)]
SMALL = {"dataset_length": 100, "batch_size": 4, "batch_tensors": [SMALL_BATCH]}  # 2,000 bytes


@pytest.mark.parametrize("module", ["__main__", "data.images"])
def test_the_edited_class_makes_each_sample_once(tmp_path: Path, module: str) -> None:
    """The strongest fix for a slow loader had no patch: its code was left to the user."""
    file = tmp_path / ("train.py" if module == "__main__" else "data/images.py")
    file.parent.mkdir(exist_ok=True)
    file.write_text(IMAGES)
    edits = _edits_of(tmp_path, module, **SMALL)
    [(before, after)] = (edited_files(edits) or {}).values()
    comment, head = "    # Read anew each time.", "    def __getitem__(self, number: int)"
    assert before == IMAGES and f"{comment}\n{head}" in after
    names: dict[str, Any] = {}
    exec(
        after.replace("from torch.utils.data", "from types").replace(
            "DataLoader, Dataset", "ModuleType as Dataset"
        ),
        names,
    )
    images = names["Images"]("images")
    images[3].append("augmented in place")
    assert images[3] == [3] and images[4] == [4] and images.made == 2
    assert images[torch.tensor(4)] == [4] and images.made == 2, "as a Subset of a tensor asks"
    file.write_text(after)
    again = _edits_of(tmp_path, module, **SMALL)
    assert (edited_files(again) or {})[str(file)][1] == after


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("number: int", "number: int, size: int = 3"),
        ("number: int", "number: int, *more"),
        ("    def __getitem__", "    @property\n    def __getitem__"),
        ("    # Read", "    __slots__ = ()\n    # Read"),
        ("from torch", "from copy import copy\nfrom torch"),
        ("return [number]\n", "return [number]\n\n\nclass Pairs(Images):\n    pass\n"),
    ],
)
def test_a_class_that_may_need_more_is_left_alone(tmp_path: Path, old: str, new: str) -> None:
    (tmp_path / "train.py").write_text(IMAGES.replace(old, new))
    assert edited_files(_edits_of(tmp_path, **SMALL)) is None


@pytest.mark.parametrize(
    "schedule",
    [
        "for epoch in range(90):\n    data.size = 64 + epoch",
        "for epoch in range(90):\n    loader.dataset.size += 1",
        "data.size: int = 64",
        "data.size.value = 64",
        "data.size[0] = 64",
        "class Wrapper:\n    def set_epoch(self, epoch):\n        self.data.size = epoch",
        "Sized.size = 64",
    ],
)
def test_a_class_whose_attribute_is_assigned_later_is_left_alone(
    tmp_path: Path, schedule: str
) -> None:
    """A trial compares the first epochs only: a schedule after them would have been lost."""
    own = IMAGES.replace("[number]", "[number] * self.size")
    (tmp_path / "train.py").write_text(f"{own}\n\n{schedule}\n")
    assert edited_files(_edits_of(tmp_path, **SMALL)) is None


@pytest.mark.parametrize("trains", ["train.py", "engine.py"])
def test_an_attribute_that_another_file_assigns(tmp_path: Path, trains: str) -> None:
    """The class may stand in one module, and the loop that changes it later in another."""
    (tmp_path / "images.py").write_text(IMAGES.replace("[number]", "[number] * self.size"))
    (tmp_path / "train.py").write_text("data = Images()\n")
    assert edited_files(_edits_of(tmp_path, "images", trains, **SMALL)) is not None
    (tmp_path / trains).write_text("class Loop:\n    def __init__(self):\n        self.size = 1\n")
    assert edited_files(_edits_of(tmp_path, "images", trains, **SMALL)) is not None
    (tmp_path / trains).write_text("for epoch in range(90):\n    data.size = 64 + epoch\n")
    assert edited_files(_edits_of(tmp_path, "images", trains, **SMALL)) is None


@pytest.mark.parametrize("read", [True, False])
def test_a_method_that_sets_what_a_sample_is_made_by(tmp_path: Path, read: bool) -> None:
    """An attribute set as the data set is made, or only counted, is no reason against it."""
    setter = "    def set_epoch(self, epoch):\n        self.epoch = epoch\n\n" * read
    begin = "    def __init__(self):\n        self.epoch = self.uses = 0\n\n"
    own = IMAGES.replace("    # Read", f"{begin}{setter}    # Read")
    own = own.replace("return [number]", "self.uses += 1\n        return [number] * self.epoch")
    (tmp_path / "train.py").write_text(own)
    assert (edited_files(_edits_of(tmp_path, **SMALL)) is None) == read


@pytest.mark.parametrize("offered", [True, False])
def test_a_sample_that_is_a_view_is_kept_and_handed_out_alone(
    tmp_path: Path, offered: bool
) -> None:
    """A deep copy of a view copies all that it views: 65 MB for each sample of a large tensor."""
    rows = torch.arange(300.0).reshape(100, 3)
    if offered:
        images = _data_set(_offered_for())
        type(images)._make_sample = lambda self, index: {"x": [rows[index]], "y": index}
    else:
        own = IMAGES.replace("[number]\n", '{"x": [rows[number]], "y": number}\n')
        (tmp_path / "train.py").write_text(own)
        [(_, after)] = (edited_files(_edits_of(tmp_path, **SMALL)) or {}).values()
        names: dict[str, Any] = {"rows": rows}
        exec(after.replace("(Dataset)", ""), names)
        images = names["Images"]()
    for sample in (images[7], images[7], images._samples[7]):
        assert sample["y"] == 7 and torch.equal(sample["x"][0], rows[7])
        assert sample["x"][0].untyped_storage().nbytes() == 12


def test_a_module_with_another_torch_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"import jax as torch\n{IMAGES}")
    assert edited_files(_edits_of(tmp_path, **SMALL)) is None


def test_the_page_says_that_later_epochs_were_not_compared() -> None:
    risks = catalogue.explain("decoded-cache").split("\nRisks\n", 1)[1].split("\n\n", 1)[0]
    assert "every epoch" in " ".join(risks.split())


def test_without_a_script_no_file_of_this_folder_is_taken_for_the_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "images.py").write_text(IMAGES)
    monkeypatch.chdir(tmp_path)
    loader = {"ident": 0, "batches": 9, "dataset_cls": "images.Images", **SMALL}
    command = {"command": ["python", "-c", "..."], "cwd": str(tmp_path), "script": None}
    seen = recording({"workload": command, "processes": [{"pid": 1, "loaders": [loader]}]})
    assert FIX.edits({"limit_bytes": 4000}, seen) == []


def test_no_edit_keeps_more_than_fits_into_memory(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(IMAGES)
    assert _edits_of(tmp_path) == []
    assert _edits_of(tmp_path, **SMALL, num_workers=3, persistent_workers=True) == []


def test_the_page_offers_the_same_and_says_when_the_cache_is_lost() -> None:
    page = " ".join(catalogue.explain("decoded-cache").split())
    assert "return self._copy_of(samples[key])" in page
    assert "persistent_workers" in page, "else the cache ends with each epoch's workers"


def test_why_it_may_not_be_used_later_chains_no_colons() -> None:
    why = fact("another-sample-at-once")
    loader = {"ident": 0, "batches": 9, "samples": 9, "dataset_length": 99}
    check = {"loader": 0, "samples": 8, "same": False, "why": asdict(why)}
    own = {"pid": 1, "loaders": [loader], "sample_check": check}
    refused = FIX.refuses(recording({"processes": [own], "steps": {"data_wait_s": 0.008}}))
    assert refused == fact("first-epoch-alone", why=within(why))
    assert ":" not in trial_facts.refusal(refused, "decoded-cache")
