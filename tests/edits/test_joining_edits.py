"""What a loop joins in each turn is collected: the same tensor, or no change at all."""

from __future__ import annotations

import pytest
import torch

from torchdoctor.edits import JoinedOnceEdit
from torchdoctor.edits.source import edited

LOOP = """import torch

def embed(model, batches):
    kept = torch.empty(0, 3)
    for batch in batches:
        if batch.sum() < 0:
            continue
        out = model(batch)
        kept = torch.cat([kept, out], dim=0)
    return kept
"""
NESTED = """import torch

kept = torch.empty(0, 3)
for epoch in range(2):
    for batch in batches:
        kept = torch.cat((kept, model(batch), batch))
    print(epoch)
"""


def edit_of(source: str) -> JoinedOnceEdit:
    return JoinedOnceEdit(file="", line=source[: source.index("kept = torch.cat")].count("\n") + 1)


def batches() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, 3, generator=generator) for _ in range(9)]


@pytest.mark.parametrize(
    "source",
    [
        LOOP,
        LOOP.replace("torch.empty(0, 3)", "torch.ones(1, 3)"),
        LOOP.replace("[kept, out], dim=0", "dim=0, tensors=(kept, out)"),
    ],
)
def test_the_loop_gives_the_same_tensor(source: str) -> None:
    code = edited(source, edit_of(source))
    assert code is not None
    assert code.count("torch.cat(") == 1
    before: dict[str, object] = {}
    after: dict[str, object] = {}
    exec(source, before)
    exec(code, after)
    for given in (batches(), []):
        wanted = before["embed"](torch.sin, given)  # type: ignore[operator]
        assert torch.equal(after["embed"](torch.sin, given), wanted)  # type: ignore[operator]


def test_it_is_joined_behind_the_outermost_loop_and_once_only() -> None:
    code = edited(NESTED, edit_of(NESTED))
    assert code is not None
    before = {"batches": batches(), "model": torch.sin}
    after = {"batches": batches(), "model": torch.sin}
    exec(NESTED, before)
    exec(code, after)
    assert torch.equal(after["kept"], before["kept"])  # type: ignore[arg-type]
    line = code[: code.index("kept_parts +=")].count("\n") + 1
    assert edited(code, JoinedOnceEdit(file="", line=line)) == code


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("        out = model(batch)", "        out = model(batch) + len(kept)"),
        ("            continue", "            return None"),
        ("            continue", "            raise ValueError"),
        ("[kept, out]", "[out, kept]"),
        ("[kept, out]", "[kept, *out]"),
        ("dim=0)", "out=kept)"),
        ("    return kept", "    else:\n        print(kept)\n    return kept"),
        ("    for batch", "    last = lambda: kept[-1]\n    for batch"),
        ("    kept = torch.empty(0, 3)", "    global kept"),
        ("        kept = torch.cat", "        with torch.no_grad(): kept = torch.cat"),
    ],
)
def test_what_else_uses_it_in_the_loop_leaves_it_as_it_is(old: str, new: str) -> None:
    source = LOOP.replace(old, new)
    assert source != LOOP
    assert edited(source, edit_of(source)) is None
