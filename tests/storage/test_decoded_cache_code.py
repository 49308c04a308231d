"""The code that decoded-cache offers does what the fix did: it hands out copies."""

from __future__ import annotations

import copy
from typing import Any

from partial_recordings import recording

from torchdoctor import catalogue

FIX = catalogue.fixes()["decoded-cache"]


def _data_set(code: str) -> Any:
    names: dict[str, Any] = {"copy": copy}
    exec(code, names)

    class Images:
        def __init__(self) -> None:
            self.samples: dict[int, list[int]] = {}
            self.decoded = 0

        def decode(self, index: int) -> list[int]:
            self.decoded += 1
            return [index]

        __getitem__ = names["__getitem__"]

    return Images()


def test_what_changes_a_sample_changes_no_later_one() -> None:
    loader = {"ident": 0, "batches": 9, "dataset_cls": "__main__.Images"}
    code = FIX.instruction({}, recording({"processes": [{"pid": 1, "loaders": [loader]}]}))
    images = _data_set(code)
    images[3].append("augmented in place")
    assert images[3] == [3]
    assert images.decoded == 1
    assert "persistent_workers=True" in code


def test_the_page_offers_the_same_and_says_when_the_cache_is_lost() -> None:
    page = catalogue.explain("decoded-cache").split("Make it permanent")[1].split("Sources")[0]
    assert "return copy.deepcopy(self.samples[index])" in page
    assert "they end with each epoch, and the cache with them" in page


def test_why_it_may_not_be_used_later_chains_no_colons() -> None:
    why = "The same index gave another sample when it was asked for again."
    loader = {"ident": 0, "batches": 9, "samples": 9, "dataset_length": 99}
    check = {"loader": 0, "samples": 8, "same": False, "reason": why}
    own = {"pid": 1, "loaders": [loader], "sample_check": check}
    refused = FIX.refuses(recording({"processes": [own], "steps": {"data_wait_s": 0.008}}))
    assert refused is not None
    assert refused.endswith(f"Nor may it be used later. {why}")
    assert ":" not in refused
