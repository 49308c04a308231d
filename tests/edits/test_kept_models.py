"""Edits of programs that infer: a model made in each request, a cache that is switched off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from written_code import statements

from torchdoctor.edits import AssignedEdit, KeptModelEdit, KeywordEdit
from torchdoctor.edits.made_models import MadeModel, made_model
from torchdoctor.edits.source import edited
from torchdoctor.edits.switched_off import switched_off

REQUEST = """import torch


class Net:
    made = []

    def __init__(self):
        self.made.append(self)

    def load_state_dict(self, state):
        self.state = state

    def eval(self):
        return self

    def __call__(self, x):
        return self.state, x


def read(path):
    return path + "!"


# Answers one request.
def answer(path, x):
    y = x + 1
    model = Net()  # the model
    state = read(path)
    model.load_state_dict(state)
    model.eval()
    return model(y)


answers = [answer(path, x) for path in ("a", "b") for x in range(4)]
"""
IN_LOOP = """import torch
from nets import Net, load

WEIGHTS = "w.pt"
for x in requests:
    model = load(WEIGHTS)
    model.eval()
    print(model(x))
"""


def line_of(source: str, text: str) -> int:
    return next(n for n, line in enumerate(source.split("\n"), 1) if text in line)


def kept(source: str, call: str, name: str = "model") -> str | None:
    return edited(source, KeptModelEdit(file="", line=line_of(source, call), name=name))


def found(source: str, call: str) -> MadeModel | None:
    return made_model(source, line_of(source, call), "model")


def ran(code: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(code, "example.py", "exec"), names)
    return names


def test_what_makes_the_model_runs_once_for_each_path() -> None:
    code = kept(REQUEST, "return model(y)")
    assert code is not None
    before, after = ran(REQUEST), ran(code)
    assert after["answers"] == before["answers"]
    assert (len(before["Net"].made), len(after["Net"].made)) == (8, 2)
    assert kept(code, "return model(y)") == code, "once is enough"
    comments = [line.strip() for line in REQUEST.splitlines() if line.strip().startswith("#")]
    assert comments and code.index(comments[0]) > code.index("def _kept_model(path)")
    assert "# the model" in code


def test_a_model_that_a_loop_makes_is_made_by_its_first_turn() -> None:
    code = kept(IN_LOOP, "print(model(x))")
    assert code is not None
    written = statements(code)
    assert written[written.index("model = _kept_model()") + 1] == "print(model(x))"
    made = found(IN_LOOP, "print(model(x))")
    assert made is not None and made.in_loop and made.given == ()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    y = x + 1", "    y = x + 1\n    model = None"),  # made in two places
        ("    return model(y)", "    model.train()\n    return model(y)"),
        ("    return model(y)", "    model.scale = y\n    return model(y)"),
        ("    model = Net()  # the model", "    model = yield"),
        ("    model = Net()  # the model", "    model = Net() if x else Net()"),
    ],
)
def test_a_model_that_is_changed_or_made_otherwise_is_not_kept(old: str, new: str) -> None:
    source = REQUEST.replace(old, new)
    code = kept(source, "return model(y)")
    if "if x" in new:  # it depends on more, which then decides which model is kept
        assert code is not None and "def _kept_model(path, x)" in code
    else:
        assert code is None


def test_a_name_that_the_program_sets_again_decides_nothing_for_sure() -> None:
    source = REQUEST.replace("read(path)", "read(WHERE)").replace(
        "# Answers", "WHERE = 'a'\nWHERE = 'b'\n\n\n# Answers"
    )
    assert kept(source, "return model(y)") is None
    once = source.replace("WHERE = 'a'\n", "")
    made = found(once, "return model(y)")
    assert made is not None and made.given == ()


def test_what_else_is_read_of_the_making_stays_where_it_is() -> None:
    source = REQUEST.replace("return model(y)", "return model(y), state")
    assert found(source, "return model(y)") is None, "the weights would be loaded again"
    without = source.replace("    model.load_state_dict(state)\n", "")
    made = found(without, "return model(y)")
    assert made is not None
    assert made.first == made.last == line_of(without, "model = Net()")


def test_a_cache_that_is_switched_off_is_switched_on(tmp_path: Path) -> None:
    source = (
        "import torch\nmodel.config.use_cache = False\n"
        "model.generate(\n    ids, use_cache=False)\nmodel.generate(ids, use_cache=True)\n"
    )
    file = tmp_path / "infer.py"
    file.write_text(source)
    off = switched_off(str(file), "use_cache")
    assert [(x.line, x.callee) for x in off] == [(2, None), (3, "generate")]
    value = {"file": "", "value": "True"}
    config = AssignedEdit(**value, line=2, name="use_cache")
    call = KeywordEdit(**value, line=3, callee="generate", keyword="use_cache")
    changed = edited(source, config)
    assert changed is not None and "config.use_cache = True" in changed
    changed = edited(changed, call)
    assert changed is not None and "use_cache=False" not in changed
    assert edited(source, AssignedEdit(**value, line=3, name="use_cache")) is None
