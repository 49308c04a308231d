"""Several edits of one file: none of them moves another one's place, and none loses its names."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest
from written_code import keywords, same_code, statements

from torchdoctor.edits import (
    BeforeLoopEdit,
    DropKeywordEdit,
    Edit,
    InputEdit,
    KeptSamplesEdit,
    KeywordEdit,
    RemoveEdit,
    StatementEdit,
    WithEdit,
)
from torchdoctor.edits.composing import compose
from torchdoctor.edits.source import EditedProgram, edited

TRAINING = """import copy

import torch
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __getitem__(self, index):
        return decode(index)


def evaluate(model, loader):
    for x in loader:
        model(x)


def main():
    model = build_model()
    loader = DataLoader(Images(), batch_size=4)
    for epoch in range(2):
        for x, y in loader:
            loss = model(x).mean()
            # wait for it
            torch.cuda.synchronize()
            loss.backward()
        evaluate(model, loader)
"""
LAYOUT = "model.to(memory_format=torch.channels_last)"


def line_of(source: str, text: str) -> int:
    return next(n for n, line in enumerate(source.splitlines(), 1) if text in line)


def together(source: str, edits: Sequence[Edit]) -> str | None:
    """The text with the edits, which no order of them changes."""
    program = EditedProgram(source)
    texts = {program.with_edits(order) for order in itertools.permutations(edits)}
    assert len(texts) == 1
    return texts.pop()


def on(source: str) -> dict[str, Edit]:
    """One edit of each kind."""
    loader, forward = line_of(source, "DataLoader(I"), line_of(source, "loss = model")

    def keyword(name: str, value: str) -> KeywordEdit:
        return KeywordEdit(file="", line=loader, callee="DataLoader", keyword=name, value=value)

    return {
        "cache": KeptSamplesEdit(file="", line=line_of(source, "def __getitem__"), changed=()),
        "workers": keyword("num_workers", "2"),
        "pinned": keyword("pin_memory", "True"),
        "layout": BeforeLoopEdit(
            file="", line=forward, statement=LAYOUT, name="model", function="main"
        ),
        "images": InputEdit(file="", line=forward, callee="model", method=".to(torch.float)"),
        "autocast": WithEdit(
            file="", line=forward, callee="model", before=line_of(source, "loss.backward"),
            context="torch.autocast('cpu')",
        ),
        "no wait": RemoveEdit(file="", line=line_of(source, "synchronize"), callee="synchronize"),
        "threads": StatementEdit(file="", statement="torch.set_num_threads(1)"),
    }  # fmt: skip


def test_lines_that_one_edit_adds_do_not_move_another_ones_place() -> None:
    """A cache in a class above it moved the statement above `model = build_model()`."""
    edits = on(TRAINING)
    text = together(TRAINING, [edits[x] for x in ("cache", "workers", "layout", "autocast")])
    assert text is not None
    written = statements(text)
    at = written.index(LAYOUT)
    assert written[at - 2] == "model = build_model()" and "DataLoader(" in written[at - 1]
    lines = text.splitlines()
    assert lines[lines.index(f"    {LAYOUT}") + 1].startswith("    for epoch in")
    assert text.count(LAYOUT) == 1


def test_all_that_one_line_needs_comes_out() -> None:
    edits = on(TRAINING)
    names = ("workers", "pinned", "images", "autocast", "no wait", "threads")
    text = together(TRAINING, [edits[x] for x in names])
    assert text is not None
    added = {"num_workers": "2", "pin_memory": "True"}
    assert keywords(text, "DataLoader") == {"batch_size": "4", **added}
    block = (
        "            with torch.autocast('cpu'):\n"
        "                loss = model(x.to(torch.float)).mean()\n"
        "            # wait for it\n"
        "            loss.backward()\n"
    )
    assert block in text, "its comment stays"
    assert "Dataset\n\ntorch.set_num_threads(1)\n\n\nclass" in text


@pytest.mark.parametrize("names", list(itertools.combinations(on(TRAINING), 3)))
def test_three_edits_make_one_text_in_any_order(names: tuple[str, ...]) -> None:
    edits = on(TRAINING)
    assert together(TRAINING, [edits[x] for x in names]) is not None


def test_a_statement_removed_within_a_block_that_goes_under_a_context() -> None:
    source = """import torch
for x in loader:
    out = model(x)
    torch.cuda.synchronize()
    loss = out.mean()
    loss.backward()
"""
    context = WithEdit(file="", line=3, callee="model", before=6, context="torch.autocast('cpu')")
    no_wait = RemoveEdit(file="", line=4, callee="synchronize")
    wanted = (
        "import torch\nfor x in loader:\n    with torch.autocast('cpu'):\n        out = model(x)\n"
        "        loss = out.mean()\n    loss.backward()\n"
    )
    assert same_code(together(source, [context, no_wait]), wanted)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("Adam(p, lr=0.1, foreach=True)", "Adam(p, lr=0.1, fused=True)"),
        ("Adam(p, foreach=True, lr=0.1)", "Adam(p, fused=True, lr=0.1)"),
        ("Adam(p, foreach=True, maximize=False, lr=0.1)", "Adam(p, fused=True, lr=0.1)"),
        ("Adam(\n    p,\n    foreach=True,  # all\n)", "Adam(\n    p,\n    fused=True,  # all\n)"),
        ("Adam(p, maximize=False, foreach=True)", "Adam(p, fused=True)"),
    ],
)
def test_what_is_added_takes_the_place_of_what_is_dropped(before: str, after: str) -> None:
    def dropped(name: str) -> DropKeywordEdit:
        line = line_of(before, "Adam")
        return DropKeywordEdit(file="", line=line, callee="Adam", keyword=name)

    fused = KeywordEdit(file="", line=1, callee="Adam", keyword="fused", value="True")
    assert together(before, [fused, dropped("foreach"), dropped("maximize")]) == after


def test_neighbours_that_are_dropped_leave_no_comma() -> None:
    drops = [DropKeywordEdit(file="", line=1, callee="f", keyword=name) for name in ("b", "c", "e")]
    five = "f(a, b=1, c=2, d=3, e=4)\n"
    assert together(five, drops) == "f(a, d=3)\n"
    assert together("f(a, b=1, c=2)\n", drops) == "f(a)\n"


def test_a_call_that_gets_too_long_has_a_line_for_each_argument() -> None:
    source = """def main():
    if True:
        loader = DataLoader(Images(folder, "train"), batch_size=args.batch, shuffle=True)  # all
"""
    added = [
        KeywordEdit(file="", line=3, callee="DataLoader", keyword=name, value=value)
        for name, value in (("num_workers", "2"), ("pin_memory", "True"))
    ]
    assert (
        together(source, added)
        == """def main():
    if True:
        loader = DataLoader(
            Images(folder, "train"),
            batch_size=args.batch,
            shuffle=True,
            num_workers=2,
            pin_memory=True,
        )  # all
"""
    )
    short = source.replace('Images(folder, "train")', "data")
    on_one_line = short.replace(")  # all", ", num_workers=2)  # all")
    assert together(short, added[:1]) == on_one_line


def test_an_argument_needs_no_guard_where_another_edit_writes_the_number() -> None:
    """`args.workers > 0` would be False, with the number of workers written beside it."""
    source = """import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--workers", type=int, default=0)
args = parser.parse_args()
seed(args.workers)
DataLoader(d, num_workers=args.workers)
"""
    kept = KeywordEdit(
        file="", line=6, callee="DataLoader", keyword="persistent_workers", value="True",
        needs="num_workers",
    )  # fmt: skip
    two = KeywordEdit(file="", line=6, callee="DataLoader", keyword="num_workers", value="2")

    def loader(text: str | None) -> dict[str, str]:
        return keywords(text or "", "DataLoader")

    workers, guard = "args.workers", "args.workers > 0"
    alone = {"num_workers": workers, "persistent_workers": guard}
    assert loader(edited(source, kept)) == alone
    written = {"num_workers": "2", "persistent_workers": "True"}
    assert loader(together(source, [kept, two])) == written
    for_it_alone = source.replace("seed(args.workers)\n", "\n")
    text = together(for_it_alone, [kept, two])
    assert loader(text) == alone and keywords(text or "", "add_argument")["default"] == "2"


def before_loop(source: str, at: str, statement: str = LAYOUT, function: str = "") -> str | None:
    edit = BeforeLoopEdit(
        file="", line=line_of(source, at), statement=statement, name="model", function=function
    )
    return edited(source, edit)


def test_a_name_of_another_function_is_not_bound_here() -> None:
    source = """import torch
def make():
    model = Net()
    return model
def main():
    for x in data:
        step(x)
"""
    assert before_loop(source, "step(x)") is None


def test_a_statement_goes_below_what_binds_its_names() -> None:
    source = """import torch
def main():
    for x in data:
        try:
            prepare(x)
        finally:
            step(model, x)
    model = Net()
"""
    assert before_loop(source, "step(") is None, "no place above the loop has the name"
    nested = """import torch
def main():
    with torch.no_grad():
        model = Net()
        for x in data:
            step(model, x)
"""
    assert f"Net()\n        {LAYOUT}\n        for x" in (before_loop(nested, "step(") or "")


@pytest.mark.parametrize(
    ("bound", "ok"),
    [
        ("model = Net()", True),
        ("with made() as model:\n        pass", True),
        ("for model in models:\n        pass", True),
        ("import model", True),
        ("def model(x):\n        pass", True),
        ("if (model := Net()):\n        pass", True),
        ("if big:\n        model = Net()\n    else:\n        model = Small()", True),
        ("try:\n        model = Net()\n    except ValueError:\n        raise", True),
        ("model, other = Net(), 1", True),
        ("model: object = Net()", True),
        ("model: object", False),
        ("def make():\n        model = Net()", False),
        ("numbers = [model for model in models]", False),
        ("class Holder:\n        model = Net()", False),
    ],
)
def test_what_binds_a_name_and_what_does_not(bound: str, ok: bool) -> None:
    source = f"import torch\ndef main():\n    {bound}\n    for x in data:\n        step(x)\n"
    assert (before_loop(source, "step(x)") is not None) == ok


@pytest.mark.parametrize(
    "head", ["for model in models:", "with made() as model:", "while (model := following()):"]
)
def test_the_head_of_a_block_binds_names_within_it(head: str) -> None:
    source = f"""import torch
def main():
    {head}
        for x in data:
            step(x)
"""
    assert f"{head}\n        {LAYOUT}\n        for" in (before_loop(source, "step(x)") or "")


def test_of_two_branches_the_other_one_binds_nothing() -> None:
    source = """import torch
def main():
    if first:
        model = Net()
    else:
        for x in data:
            step(x)
"""
    assert before_loop(source, "step(x)") is None
    tried = source.replace("if first", "try").replace("else", "finally")
    assert before_loop(tried, "step(x)") is not None


def test_parameters_closures_and_globals_are_bound() -> None:
    given = "import torch\ndef train(model):\n    for x in data:\n        step(x)\n"
    assert before_loop(given, "step(x)") is not None
    closure = """import torch
def main():
    def train():
        for x in data:
            step(x)
    model = Net()
    train()
"""
    assert before_loop(closure, "step(x)") is not None
    shared = "import torch\ndef train():\n    for x in data:\n        step(x)\nmodel = Net()\n"
    assert before_loop(shared, "step(x)") is not None


def test_no_assignment_makes_a_variable_of_the_function_of_a_global() -> None:
    """`model = torch.compile(model)` there would be an UnboundLocalError."""
    source = "import torch\nmodel = Net()\ndef train():\n    for x in data:\n        step(x)\n"
    made = "model = torch.compile(model)"
    assert before_loop(source, "step(x)", made) is None
    declared = source.replace("    for", "    global model\n    for")
    assert before_loop(declared, "step(x)", made) is not None


def test_a_statement_for_training_lands_in_no_other_function() -> None:
    """The file is not what ran: the recorded line is one of `evaluate` now."""
    assert before_loop(TRAINING, "        model(x)", function="main") is None
    assert before_loop(TRAINING, "        model(x)", function="evaluate") is not None


def test_an_import_goes_beside_its_like() -> None:
    source = "import argparse\nimport os\n\nimport torch\nfrom torch import nn\n\nx = 1\n"
    needed = StatementEdit(file="", statement="import copy")
    threads = StatementEdit(file="", statement="torch.set_num_threads(1)")
    wanted = source.replace("import os", "import copy\nimport os")
    wanted = wanted.replace("x = 1", "torch.set_num_threads(1)\n\nx = 1")
    assert together(source, [needed, threads]) == wanted
    alone = "import torch\n\nx = 1\n"
    assert together(alone, [needed]) == alone.replace("torch\n", "torch\nimport copy\n")
    present = source.replace("import os", "import copy")
    assert together(present, [needed]) == present


def test_a_group_is_made_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(TRAINING)
    line = line_of(TRAINING, "DataLoader(I")

    def keyword(callee: str, name: str) -> KeywordEdit:
        return KeywordEdit(file=str(path), line=line, callee=callee, keyword=name, value="2")

    groups = {
        "half": [keyword("DataLoader", "timeout"), keyword("Missing", "timeout")],
        "whole": [keyword("DataLoader", "num_workers")],
        "none": [],
    }
    composed = compose(groups)
    assert (composed.made, composed.left_out) == (["whole"], ["half", "none"])
    [(before, after)] = composed.files.values()
    assert before == TRAINING and "timeout" not in after and "num_workers=2" in after
