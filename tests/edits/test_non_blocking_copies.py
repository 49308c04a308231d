"""Copies of a batch that do not block."""

from __future__ import annotations

import pytest

from torchdoctor.edits import NonBlockingEdit
from torchdoctor.edits.source import edited


def non_blocking(source: str) -> str | None:
    line = next(n for n, text in enumerate(source.splitlines(), 1) if "model(" in text)
    once = edited(source, NonBlockingEdit(file="", line=line))
    assert once is None or edited(once, NonBlockingEdit(file="", line=line)) == once
    return once


def test_the_parts_of_the_batch_are_copied_without_blocking() -> None:
    source = """for i, (data, target) in enumerate(loader):
    data, target = data.to(device), target.cuda()  # both
    extra = data[0].to(device=device)
    noise = noise.to(device)
    labels = target.to(torch.float32)
    output = model(data)
    target.to('cpu')
"""
    changed = non_blocking(source)
    assert changed == source.replace("data.to(device), target.cuda()", (
        "data.to(device, non_blocking=True), target.cuda(non_blocking=True)"
    )).replace("device=device)", "device=device, non_blocking=True)")  # fmt: skip


def test_the_parts_of_a_dictionary_are_parts_of_the_batch() -> None:
    source = """for batch in loader:
    batch = {k: v.to(device) for k, v in batch.items()}
    model(**batch)
"""
    changed = non_blocking(source)
    assert changed is not None and "v.to(device, non_blocking=True) for" in changed


@pytest.mark.parametrize(
    "source",
    [
        "model(x.to(device))\n",
        "for x in loader:\n    model(x)\n",
        "for x in loader:\n    y = other.to(device)\n    model(x)\n",
        "for x in loader:\n    x = x.to(torch.float32)\n    model(x)\n",
        "for x in loader:\n    x = x.to(*where)\n    model(x)\n",
    ],
)
def test_what_is_not_surely_a_copy_of_the_batch_stays(source: str) -> None:
    assert non_blocking(source) is None
