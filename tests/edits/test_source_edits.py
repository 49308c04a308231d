"""Edits of source text: what changes, what stays, and when nothing is changed at all."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace

from torchdoctor.edits import DecoratorEdit, KeywordEdit, StatementEdit
from torchdoctor.edits.diff import instead, unified_diff
from torchdoctor.edits.keywords import argument_of
from torchdoctor.edits.options import by_command
from torchdoctor.edits.source import edited
from torchdoctor.edits.syntax import Program

WORKERS = ("DataLoader", "num_workers", "4", 5)

SAME_LINE = [
    ("DataLoader(data)", "DataLoader(data, num_workers=4)"),
    ("DataLoader()", "DataLoader(num_workers=4)"),
    ("DataLoader( data )", "DataLoader( data, num_workers=4 )"),
    ("DataLoader(data, num_workers=0)", "DataLoader(data, num_workers=4)"),
    ("DataLoader(data, num_workers = 0, pin_memory=True)", None),
    (
        "x = utils.data.DataLoader(data,)  # note",
        "x = utils.data.DataLoader(data, num_workers=4)  # note",
    ),
    ("DataLoader(d, 8, True, None, None, 2)", "DataLoader(d, 8, True, None, None, 4)"),
    (
        "for x in DataLoader(Data(1), 2): pass",
        "for x in DataLoader(Data(1), 2, num_workers=4): pass",
    ),
]

OVER_LINES = [
    (
        "DataLoader(\n    data,  # the data\n    batch_size=8,  # fits\n)\n",
        "DataLoader(\n    data,  # the data\n    batch_size=8,  # fits\n    num_workers=4,\n)\n",
    ),
    (
        "DataLoader(\n    data,\n    batch_size=8\n)\n",
        "DataLoader(\n    data,\n    batch_size=8,\n    num_workers=4\n)\n",
    ),
    (
        "DataLoader(\n    data,\n)\n",
        "DataLoader(\n    data,\n    num_workers=4,\n)\n",
    ),
    (
        "x = DataLoader(data,\n               batch_size=8)  # z\n",
        "x = DataLoader(data,\n               batch_size=8,\n               num_workers=4)  # z\n",
    ),
    (
        "DataLoader(\n    data, batch_size=8\n    # the end\n)\n",
        "DataLoader(\n    data, batch_size=8,\n    # the end\n    num_workers=4\n)\n",
    ),
]


@pytest.mark.parametrize(("before", "after"), SAME_LINE)
def test_a_keyword_on_one_line(before: str, after: str | None) -> None:
    if after is None:
        after = before.replace("= 0", "= 4")
    assert edit_call_keyword(before, 1, *WORKERS) == after
    assert edit_call_keyword(after, 1, *WORKERS) == after


@pytest.mark.parametrize(("before", "after"), OVER_LINES)
def test_a_keyword_over_several_lines_keeps_the_layout(before: str, after: str) -> None:
    for line in range(1, before.count("\n") + 1):
        assert edit_call_keyword(before, line, *WORKERS) == after
    assert edit_call_keyword(after, 1, *WORKERS) == after


@pytest.mark.parametrize(
    "source",
    [
        "DataLoader(data, **options)",
        "DataLoader(*arguments)",
        "Loader(data)",
        "pair = DataLoader(a), DataLoader(b)",
        "DataLoader(x for x in y)",
        "DataLoader(data",
        "pass",
    ],
)
def test_what_is_not_certain_is_not_done(source: str) -> None:
    assert edit_call_keyword(source, 1, *WORKERS) is None


def command_for(source: str, edit: KeywordEdit) -> list[str] | None:
    program = Program(source)
    return by_command(program, argument_of(program, edit), edit)


def edit_call_keyword(source: str, line: int, *of: object) -> str | None:
    callee, keyword, value, position = of
    edit = KeywordEdit(
        file="", line=line, callee=callee, keyword=keyword, value=value, position=position
    )
    return edited(source, edit)


def test_a_call_that_starts_on_the_line_wins_over_one_around_it() -> None:
    source = "DataLoader(\n    DataLoader(a),\n)\n"
    inner_alone = source.replace("(a)", "(a, num_workers=4)")
    assert edit_call_keyword(source, 2, *WORKERS) == inner_alone


def test_line_ends_and_indentation_stay() -> None:
    source = "def f():\r\n\tx = DataLoader(\r\n\t\tdata,\r\n\t)\r\n"
    added = source.replace("\t\tdata,\r\n", "\t\tdata,\r\n\t\tnum_workers=4,\r\n")
    assert edit_call_keyword(source, 2, *WORKERS) == added


def statement(source: str) -> str | None:
    return edited(source, StatementEdit(file="", statement="torch.backends.x = True"))


def test_a_statement_goes_behind_the_imports() -> None:
    source = (
        '"""Doc."""\nimport os\n\nimport torch.nn as nn\nimport torch  # here\n\n\ndef f(): pass\n'
    )
    changed = statement(source)
    assert changed is not None
    assert changed == source.replace("# here\n", "# here\n\ntorch.backends.x = True\n")
    assert statement(changed) == changed


@pytest.mark.parametrize(
    "source",
    ["import torch as t\n", "from torch import nn\n", "x = 1\n", "def f():\n    import torch\n"],
)
def test_a_statement_needs_the_name_that_it_uses(source: str) -> None:
    assert statement(source) is None


EVALUATE = """import torch

# Comment.
def evaluate(model):
    model.eval()
    return model(1)

def train(model):
    loss = model(1)
    loss.backward()
"""


def decorated(source: str, line: int) -> str | None:
    return edited(source, DecoratorEdit(file="", line=line, decorator="torch.no_grad()"))


def test_a_function_that_evaluates_is_decorated() -> None:
    changed = decorated(EVALUATE, 6)
    assert changed == EVALUATE.replace("def evaluate", "@torch.no_grad()\ndef evaluate")
    assert decorated(changed, 7) == changed


def test_a_function_that_trains_is_not_decorated() -> None:
    assert decorated(EVALUATE, 9) is None
    assert decorated(EVALUATE, 1) is None
    assert decorated(EVALUATE.replace("import torch\n", "import os\n"), 6) is None


MAIN = """import torch
from torch.utils.data import DataLoader
from helpers import look
def step_of(m):
    m(1).backward()
def train_epoch(m):
    for x in DataLoader([]):
        step_of(m)
class Trainer:
    def train(self):
        self.model.train()
        train_epoch(self.model)
    def run(self):
        self.model = torch.nn.Linear(1, 1)
        BODY
        self.model.eval()
        out = self.model(1).argmax(1).item()  # here
        self.model.train()
"""


def decorated_with(body: str, main: str = MAIN) -> bool | None:
    source = main.replace("BODY", body)
    line = next(n for n, x in enumerate(source.splitlines(), 1) if "# here" in x)
    changed = decorated(source, line)
    return None if changed is None else "@torch.no_grad()" in changed


@pytest.mark.parametrize(
    "body",
    [
        "train_epoch(self.model)",
        "self.train()",
        "list(map(train_epoch, [self.model]))",
        "look(self.model)",  # of the program's own, elsewhere
        "self.engine.go()",
        "self.go()",
        "engine.train()",
        "train_one(self.model)",
    ],
)
def test_a_function_that_may_train_through_another_is_not_decorated(body: str) -> None:
    """The program would die: "element 0 of tensors does not require grad"."""
    assert decorated_with(body) is None


@pytest.mark.parametrize(
    "body", ["pass", "print(len(DataLoader([])))", "torch.manual_seed(0)", "meter.update(1)"]
)
def test_a_function_that_only_evaluates_beside_training_is_decorated(body: str) -> None:
    assert decorated_with(body) is True
    assert decorated_with(body, MAIN.replace("def run", "async def run")) is None


def test_the_diff_applies(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    script, module = tmp_path / "train.py", tmp_path / "pkg" / "data.py"
    before = "import torch\nprint(1)"  # no line end: the diff must say so
    script.write_text(before)
    module.write_bytes(b"def f(d):\r\n    return DataLoader(d)\r\n")
    edits = [
        StatementEdit(file=str(script), statement="torch.set_num_threads(2)"),
        KeywordEdit(
            file=str(module), line=2, callee="DataLoader", keyword="num_workers", value="4"
        ),
        KeywordEdit(
            file=str(module),
            line=2,
            callee="DataLoader",
            keyword="persistent_workers",
            value="True",
        ),
    ]
    text = unified_diff(edits, tmp_path)
    assert text is not None
    (tmp_path / "fix.diff").write_text(text, newline="")
    subprocess.run(["git", "apply", "fix.diff"], cwd=tmp_path, check=True)
    assert script.read_text() == before.replace("\n", "\n\ntorch.set_num_threads(2)\n")
    changed = b"    return DataLoader(d, num_workers=4, persistent_workers=True)\r\n"
    assert module.read_bytes() == b"def f(d):\r\n" + changed
    assert unified_diff(edits, tmp_path) is None  # nothing is left to do


def test_half_a_fix_is_no_diff(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\nDataLoader(**options)\n")
    edits = [
        StatementEdit(file=str(script), statement="torch.set_num_threads(2)"),
        KeywordEdit(file=str(script), line=2, callee="DataLoader", keyword="x", value="1"),
    ]
    assert unified_diff(edits, tmp_path) is None
    assert unified_diff(edits[:1], tmp_path) is not None
    missing = StatementEdit(file=str(tmp_path / "gone.py"), statement="torch.x()")
    assert unified_diff([missing], tmp_path) is None


OPTION = """import argparse
parser = argparse.ArgumentParser()
parser.add_argument('-j', '--n-workers', default=0, type=int,
                    help='number of workers (default: 0)')
args = parser.parse_args()
loader = DataLoader(data, num_workers=int(args.n_workers))
"""


def workers(source: str, *command: str) -> str | None:
    line = next(n for n, text in enumerate(source.splitlines(), 1) if "DataLoader(" in text)
    edit = KeywordEdit(
        file="/home/u/train.py", line=line, callee="DataLoader", keyword="num_workers", value="4",
        position=5, command=("python", "./train.py", *command),
    )  # fmt: skip
    once = edited(source, edit)
    assert once is None or edited(once, edit) == once, "the second time changes nothing"
    return once


def test_an_option_of_the_command_line_keeps_its_effect() -> None:
    """`--n-workers 8` shall still give eight."""
    assert workers(OPTION) == OPTION.replace("default=0", "default=4").replace(": 0)", ": 4)")
    dashed = OPTION.replace("'-j', ", "").replace("int(args.n_workers)", "args.n_workers")
    changed = workers(dashed)
    assert changed is not None and "num_workers=args.n_workers)" in changed


@pytest.mark.parametrize(
    ("given", "changed"),
    [
        (["--n-workers", "2"], ["--n-workers", "4"]),
        (["--n-workers=2", "x"], ["--n-workers=4", "x"]),
        (["-j", "2"], ["-j", "4"]),
        (["-j2"], ["-j4"]),
    ],
)
def test_an_option_that_the_command_gives_is_changed_there(given: list, changed: list) -> None:
    assert workers(OPTION, *given) is None
    edit = KeywordEdit(
        file="", line=6, callee="DataLoader", keyword="num_workers", value="4",
        command=("python", "train.py", *given),
    )  # fmt: skip
    assert command_for(OPTION, edit) == ["python", "train.py", *changed]
    assert command_for(OPTION, replace(edit, command=("python", "train.py"))) is None
    assert workers(OPTION, *changed) == OPTION, "the command gives that number already"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("N = 0  # n\nDataLoader(d, num_workers=N)", "N = 4  # n\nDataLoader(d, num_workers=N)"),
        (
            "def f():\n    n = 2\n    DataLoader(d, num_workers=n)",
            "def f():\n    n = 4\n    DataLoader(d, num_workers=n)",
        ),
        (
            "import os\nDataLoader(d, num_workers=min(2, os.cpu_count()))",
            "import os\nDataLoader(d, num_workers=4)",
        ),
    ],
)
def test_a_constant_is_changed_where_it_is_set(before: str, after: str) -> None:
    assert workers(before) == after


@pytest.mark.parametrize(
    "source",
    [
        "DataLoader(d, num_workers=config.num_workers)\n",
        "def f(n=0):\n    DataLoader(d, num_workers=n)\n",
        "n = 0\nn = 2\nDataLoader(d, num_workers=n)\n",
        "n = 0\nexec(open('settings').read())\nDataLoader(d, num_workers=n)\n",
        OPTION.replace("default=0, ", ""),
        OPTION.replace("loader =", "args.n_workers = count()\nloader ="),
        OPTION.replace("loader =", "parser.add_argument('--n_workers')\nloader ="),
    ],
)
def test_a_value_of_unknown_origin_is_not_overwritten(source: str) -> None:
    """It would leave the option, or the parameter, without effect."""
    assert workers(source) is None


def test_workers_that_an_option_may_turn_off_stay_optional() -> None:
    """`--n-workers 0` would otherwise be an error of the loader."""
    for keyword, value, written in (
        ("persistent_workers", "True", "int(args.n_workers) > 0"),
        ("prefetch_factor", "4", "4 if int(args.n_workers) > 0 else None"),
    ):
        edit = KeywordEdit(
            file="", line=6, callee="DataLoader", keyword=keyword, value=value, needs="num_workers"
        )
        assert f"{keyword}={written})" in (edited(OPTION, edit) or "")
        literal = OPTION.replace("int(args.n_workers)", "2")
        assert f"2, {keyword}={value})" in (edited(literal, edit) or "")


@pytest.mark.parametrize(
    ("given", "keyword", "value", "written"),
    [
        ("0 if debug else n", "prefetch_factor", "4", "4 if (0 if debug else n) > 0 else None"),
        ("n if cuda else 0", "persistent_workers", "True", "(n if cuda else 0) > 0"),
        ("n or 2", "persistent_workers", "True", "(n or 2) > 0"),
        ("n > 1", "persistent_workers", "True", "(n > 1) > 0"),
        ("(n if cuda else 0)", "persistent_workers", "True", "(n if cuda else 0) > 0"),
        ("args.n", "prefetch_factor", "4", "4 if args.n > 0 else None"),
    ],
)
def test_a_conditional_number_of_workers_is_guarded_as_a_whole(
    given: str, keyword: str, value: str, written: str
) -> None:
    """`n if cuda else 0 > 0` would hand the loader a number where it takes a truth value."""
    source = f"DataLoader(d, num_workers={given})"
    edit = KeywordEdit(
        file="", line=1, callee="DataLoader", keyword=keyword, value=value, needs="num_workers"
    )
    once = edited(source, edit)
    assert once == f"DataLoader(d, num_workers={given}, {keyword}={written})"
    assert edited(once, edit) == once


def test_an_edit_that_fails_leaves_the_instruction() -> None:
    edit = KeywordEdit(file="", line=1, callee="DataLoader", keyword="x", value="4 if 0 if")
    assert edited("DataLoader(d)", edit) is None
    assert edited("DataLoader(d, x=n)", edit) is None
    assert command_for(OPTION, replace(edit, line=6, keyword="num_workers")) is None


def names(comment: str, *wanted: str) -> bool:
    """Return whether a comment in the code names all of these."""
    words, needed = (
        {word.strip(":,") for word in text.split()} for text in (comment, " ".join(wanted))
    )
    return comment.startswith("# ") and needed <= words


def test_where_an_argument_comes_from_is_said(tmp_path: Path) -> None:
    def said(source: str, *command: str) -> list[str]:
        (tmp_path / "train.py").write_text(source)
        line = next(n for n, text in enumerate(source.splitlines(), 1) if "DataLoader(" in text)
        edit = KeywordEdit(
            file=str(tmp_path / "train.py"), line=line, callee="DataLoader", keyword="num_workers",
            value="4", position=5, command=("python", "train.py", *command),
        )  # fmt: skip
        return instead([edit, edit])

    [spread] = said("DataLoader(d, **kwargs)")
    assert names(spread, "num_workers", "**kwargs", "4")
    for of in ("config.workers", 'config["workers"]'):
        [found] = said(f"DataLoader(d, num_workers={of})")
        assert names(found, "num_workers", of, "4")
    for of in ('int(os.environ.get("NW", "0"))', "int(os.environ['NW'])", 'int(os.getenv("NW"))'):
        [found] = said(f"DataLoader(d, num_workers={of})")
        assert names(found, "num_workers", of, "NW=4")
    [command] = said(OPTION, "-j", "2")
    assert shlex.split(command) == ["python", "train.py", "-j", "4"]
    assert said("DataLoader(d)") == []


def test_an_option_of_the_script_that_another_file_reads_is_named_with_the_command(
    tmp_path: Path,
) -> None:
    """Research code hands `args` through its files: the command changes what they all read."""
    (tmp_path / "run.py").write_text(
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('-j', '--num_workers', type=int, default=10)\n"
        "parser.add_argument('--pin', action='store_true')\n"
        "parser.add_argument('batch')\n"
    )
    (tmp_path / "data.py").write_text("DataLoader(d, num_workers=self.args.num_workers)")

    def said(*command: str, of: str = "num_workers", **more: str) -> list[str]:
        (tmp_path / "data.py").write_text(f"DataLoader(d, num_workers=self.args.{of})")
        edit = KeywordEdit(
            file=str(tmp_path / "data.py"), line=1, callee="DataLoader", keyword="num_workers",
            value="0", position=5, command=command, script=str(tmp_path / "run.py"),
        )  # fmt: skip
        return instead([replace(edit, **more)])

    for given, wanted in (([], ["--num_workers", "0"]), (["-j", "4", "8"], ["-j", "0", "8"])):
        comment, command = said("python", "run.py", *given)
        assert names(comment, "num_workers", "self.args.num_workers", "run.py:2")
        assert shlex.split(command) == ["python", "run.py", *wanted]
    for name in ("pin", "batch", "workers"):
        [comment] = said("python", "run.py", of=name)
        assert names(comment, "num_workers", f"self.args.{name}", "0"), "and no command"
    shell = ("bash", "-c", "python run.py 8")
    assert len(said(*shell)) == 1, "no command is made of one that is not understood"
    assert len(said("python", "run.py", script=str(tmp_path / "none.py"))) == 1
