"""What asks for float64 asks for float32 after the edit: where it is sure, else not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchdoctor.edits import BatchCastEdit, Edit, SinglePrecisionEdit
from torchdoctor.edits.reading import batch_loops
from torchdoctor.edits.source import edited

HEAD = "import torch\nDTYPE = torch.double\nOTHER = chosen()\n"


def twice(source: str, edit: Edit) -> str | None:
    once = edited(source, edit)
    assert once is None or edited(once, edit) == once
    return once


def single(line: str, callee: str) -> str | None:
    """The program with its last line in float32."""
    edit = SinglePrecisionEdit(file="", line=HEAD.count("\n") + 1, callee=callee)
    found = twice(f"{HEAD}{line}\n", edit)
    return None if found is None else found.rstrip("\n")


@pytest.mark.parametrize(
    ("line", "callee", "wanted"),
    [
        ("model = Net().double()", "double", "model = Net().float()"),
        ("f(x.double(), y.double())", "double", "f(x.float(), y.float())"),
        ("m.to(device, torch.float64)", "to", "m.to(device, torch.float32)"),
        ("m.to(dtype=torch.double)", "to", "m.to(dtype=torch.float32)"),
        ("model = Net().half()", "half", "model = Net().float()"),
        ("m.to(device, torch.float16)", "to", "m.to(device, torch.float32)"),
        (
            "torch.set_default_tensor_type('torch.HalfTensor')",
            "set_default_tensor_type",
            "torch.set_default_tensor_type('torch.FloatTensor')",
        ),
        (
            "torch.set_default_dtype(torch.float64)",
            "set_default_dtype",
            "torch.set_default_dtype(torch.float32)",
        ),
        (
            "torch.set_default_tensor_type('torch.DoubleTensor')",
            "set_default_tensor_type",
            "torch.set_default_tensor_type('torch.FloatTensor')",
        ),
        ("x = torch.from_numpy(a)", "from_numpy", "x = torch.from_numpy(a).float()"),
        (
            "x = torch.from_numpy(a).reshape(-1).to(torch.float32)",  # the edit of `to` made it so
            "from_numpy",
            "x = torch.from_numpy(a).reshape(-1).to(torch.float32)",
        ),
        ("x = torch.tensor(a).to(d)", "tensor", "x = torch.tensor(a).to(d)"),
        ("x = torch.from_numpy(a).double()", "from_numpy", "x = torch.from_numpy(a).double()"),
        (
            "x = torch.tensor(a, dtype=torch.float64)",
            "tensor",
            "x = torch.tensor(a, dtype=torch.float32)",
        ),
        (
            "x, y = torch.from_numpy(a), torch.from_numpy(b)",
            "from_numpy",
            "x, y = torch.from_numpy(a).float(), torch.from_numpy(b).float()",
        ),
    ],
)
def test_a_line_asks_for_float32(line: str, callee: str, wanted: str) -> None:
    assert single(line, callee) == HEAD + wanted


@pytest.mark.parametrize(
    ("line", "callee"),
    [
        ("m.to(OTHER)", "to"),  # what it is decided elsewhere
        ("m.to(args.dtype)", "to"),
        ("m.to(DTYPE)", "to"),  # a constant may be for more
        ("x = torch.tensor(a, dtype=OTHER)", "tensor"),
        ("x = torch.tensor(*a)", "tensor"),
        ("x = f(a)", "from_numpy"),
    ],
)
def test_what_is_not_sure_stays(line: str, callee: str) -> None:
    assert single(line, callee) is None


LOOPS = """import torch
for epoch in range(3):
    for i, (x, y) in enumerate(loader):
        loss = criterion(model(x), y)
    with torch.no_grad():
        for x, y in validation:
            model(x)
    for x, y in others:
        look(x)
for (x, y, z) in triples:
    model(x)
"""


def test_every_loop_that_hands_such_batches_to_the_model_is_found(tmp_path: Path) -> None:
    """A validation loop that kept its float64 would fail after the patch."""
    file = tmp_path / "train.py"
    file.write_text(LOOPS)
    assert batch_loops(str(file), "model", (True, True)) == [(3, ("x", "y")), (6, ("x", "y"))]
    assert batch_loops(str(file), "model", (True, False)) == [(3, ("x",)), (6, ("x",))]
    assert batch_loops(str(file), "net", (True, True)) == []
    assert batch_loops(str(tmp_path / "gone.py"), "model", (True,)) == []


def test_a_batch_is_cast_before_all_that_the_loop_does_with_it() -> None:
    changed = twice(LOOPS, BatchCastEdit(file="", line=6, names=("x", "y")))
    added = "            x, y = x.float(), y.float()\n            model(x)\n    for"
    assert changed == LOOPS.replace("            model(x)\n    for", added)
    assert twice(LOOPS, BatchCastEdit(file="", line=4, names=("x",))) is None
    on_one_line = "for x in a: model(x)\n"
    assert twice(on_one_line, BatchCastEdit(file="", line=1, names=("x",))) is None
