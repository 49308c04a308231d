"""Options of the command line: changed only where the value comes from `parse_args()`."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from torchdoctor.edits import KeywordEdit
from torchdoctor.edits.keywords import argument_of
from torchdoctor.edits.options import by_command
from torchdoctor.edits.source import edited
from torchdoctor.edits.syntax import Program

HEAD = """import argparse
p = argparse.ArgumentParser()
p.add_argument("--workers", type=int, default=0)
"""
PLAIN = HEAD + "args = p.parse_args()\n"
CALL = "loader = DataLoader(data, num_workers=args.workers)\n"


def command_for(source: str, edit: KeywordEdit) -> list[str] | None:
    program = Program(source)
    return by_command(program, argument_of(program, edit), edit)


def workers(source: str, *command: str) -> str | None:
    """The source with four workers, which asked for again changes nothing more."""
    edit = edit_of(source, *command)
    once = edited(source, edit)
    assert once is None or edited(once, edit) == once
    return once


def edit_of(source: str, *command: str) -> KeywordEdit:
    line = next(n for n, text in enumerate(source.split("\n"), 1) if "DataLoader(" in text)
    return KeywordEdit(
        file="train.py", line=line, callee="DataLoader", keyword="num_workers", value="4",
        position=5, command=("python", "train.py", *command),
    )  # fmt: skip


@pytest.mark.parametrize(
    "source",
    [
        PLAIN + CALL,
        HEAD + "args, rest = p.parse_known_args()\n" + CALL,
        HEAD + "args: argparse.Namespace = p.parse_args()\n" + CALL,
        HEAD + "def parse():\n    return p.parse_args()\nargs = parse()\n" + CALL,
        HEAD + "def parse():\n    a = p.parse_args()\n    return a\nargs = parse()\n" + CALL,
        HEAD + f"def main(args):\n    {CALL}main(p.parse_args())\n",
        HEAD + f"def main(n, args):\n    {CALL}a = p.parse_args()\nmain(1, args=a)\n",
        HEAD + f"args = None\ndef main():\n    global args\n    args = p.parse_args()\n    {CALL}",
        PLAIN + "settings = vars(args)\nprint(settings, args.__dict__['workers'])\n" + CALL,
        PLAIN + "class A:\n  def f(self, k, v):\n    setattr(self, k, v)\n" + CALL,
        PLAIN + "g = p.add_argument_group()\n" + CALL,
        HEAD.replace("default=0", "default=0, choices=[0, 4]") + "args = p.parse_args()\n" + CALL,
    ],
)
def test_what_parse_args_returned_has_its_default_changed(source: str) -> None:
    assert workers(source) == source.replace("default=0", "default=4")


@pytest.mark.parametrize(
    "source",
    [
        PLAIN + "cfg = types.SimpleNamespace(workers=0)\n" + CALL.replace("args.", "cfg."),
        PLAIN + "class O: workers = 0\no = O()\n" + CALL.replace("args.", "o."),
        PLAIN + "cfg = load(args.file)\n" + CALL.replace("args.", "cfg."),
        PLAIN + CALL.replace("args.", "cfg.args."),
        PLAIN + "args = override(args)\n" + CALL,
        PLAIN + "args = argparse.Namespace(**load(args.file))\n" + CALL,
        PLAIN + "for args in (a, b):\n    pass\n" + CALL,
        PLAIN + f"def main(args):\n    {CALL}main(load())\n",
        PLAIN + f"def main(args):\n    {CALL}main(args)\nmain(load())\n",
        PLAIN + f"def main(args):\n    {CALL}spawn(main, cfg)\n",
        HEAD + "def parse():\n    return load()\nargs = parse()\n" + CALL,
        HEAD + "args = p.parse_args(namespace=saved)\n" + CALL,
        HEAD + "from elsewhere import parse_args\nargs = parse_args()\n" + CALL,
        PLAIN + "p.set_defaults(workers=0)\n" + CALL,
        PLAIN + "p.set_defaults(**load())\n" + CALL,
        PLAIN + "args.__dict__.update(load())\n" + CALL,
        PLAIN + "args.__dict__['workers'] = 1\n" + CALL,
        PLAIN + "vars(args).update(load())\n" + CALL,
        PLAIN + "vars(args)['workers'] = 1\n" + CALL,
        PLAIN + "d = vars(args)\nd.update(load())\n" + CALL,
        PLAIN + "d = vars(args)\nd |= load()\n" + CALL,
        PLAIN + "setattr(args, 'workers', 1)\n" + CALL,
        PLAIN + "for k, v in load().items():\n    setattr(args, k, v)\n" + CALL,
        PLAIN + "args.workers = args.workers or 0\n" + CALL,
        PLAIN + "args.workers //= 2\n" + CALL,
        HEAD.replace("default=0", "default=0, choices=[0, 1]") + "args = p.parse_args()\n" + CALL,
        HEAD.replace("default=0", "default=0, choices=f()") + "args = p.parse_args()\n" + CALL,
    ],
)
def test_an_option_that_may_be_another_is_left_alone(source: str) -> None:
    """`--workers` may be the threads of a web server, and the value a configuration file's."""
    assert workers(source) is None
    assert command_for(source, edit_of(source, "--workers", "2")) is None


def test_a_command_that_the_option_refuses_is_not_given() -> None:
    source = HEAD.replace("default=0", "default=0, choices=[0, 1]") + "args = p.parse_args()\n"
    assert command_for(source + CALL, edit_of(source + CALL, "--workers", "1")) is None
    command = command_for(PLAIN + CALL, edit_of(PLAIN + CALL, "--workers", "1"))
    assert command == ["python", "train.py", "--workers", "4"]


@pytest.mark.parametrize(
    "other",
    [
        "torch.set_num_threads(args.workers + 1)\n",
        "manual_seed(args.workers)\n",
        "model = Net(width=args.workers)\n",
        "n = args.workers\n",
        "n = getattr(args, 'workers')\n",
        "n = vars(args)['workers']\n",
        "if args.workers > 0:\n    prepare()\n",
    ],
)
def test_an_option_that_serves_something_else_keeps_its_default(other: str) -> None:
    """It would change the seed, or the threads; `--workers` still sets those."""
    changed = CALL.replace("args.workers", "4")
    for given in ((), ("--workers", "2")):
        assert workers(PLAIN + other + CALL, *given) == PLAIN + other + changed
        assert workers(PLAIN + CALL + other, *given) == PLAIN + changed + other
    source = PLAIN + other + CALL
    assert command_for(source, edit_of(source, "--workers", "2")) is None
    wrapped = CALL.replace("args.workers", "int(args.workers)")
    assert workers(PLAIN + other + wrapped) == PLAIN + other + changed


@pytest.mark.parametrize(
    "other",
    [
        "val = Loader(test, num_workers=args.workers)\n",
        "val = Loader(test, persistent_workers=args.workers > 0)\n",
        "print('workers', args.workers)\n",
        "print(f'{args.workers} workers')\n",
        "class A:\n    def f(self):\n        return self.workers\n",
    ],
)
def test_an_option_that_only_loaders_read_has_its_default_changed(other: str) -> None:
    assert workers(PLAIN + other + CALL) == (PLAIN + other + CALL).replace("=0)", "=4)")


def test_an_option_of_several_values_is_left_alone() -> None:
    source = PLAIN.replace("default=0", 'default=0, nargs="+"') + CALL
    assert workers(source) is None
    assert command_for(source, edit_of(source, "--workers", "2")) is None


def test_a_batch_size_that_losses_are_divided_by_is_not_set_in_one_place() -> None:
    source = PLAIN + "mean = total / args.workers\n" + CALL.replace("num_workers", "batch_size")
    edit = replace(edit_of(source), keyword="batch_size")
    assert edited(source, edit) is None
    given = replace(edit, command=("python", "train.py", "--workers", "2"))
    assert command_for(source, given) == ["python", "train.py", "--workers", "4"]


@pytest.mark.parametrize(
    ("others", "given", "changed"),
    [
        ('"--work"', ["--work", "x", "--workers", "1"], ["--work", "x", "--workers", "4"]),
        ('"--work"', ["--work", "x"], None),
        ('"--worker-seed"', ["--work", "1"], None),
        ('"--worker-seed"', ["--workers", "1"], ["--workers", "4"]),
        ('"--lr"', ["--workers", "1", "--workers=2"], ["--workers", "1", "--workers=4"]),
        ('"--lr"', ["--lr", "1", "--", "--workers", "1"], None),
        ('"--lr"', ["--workers"], None),
        ('"-wd"', ["-wd", "0.1"], None),
        ('"-wd"', ["-wd0.1"], None),
        ('"-wd"', ["-wd=0.1", "-w", "2"], ["-wd=0.1", "-w", "4"]),
        ('"-wdecay"', ["-wd", "0.1"], None),
        ('"-wd"', ["-w2"], ["-w4"]),
        ('"-wd"', ["-w=2"], ["-w=4"]),
        ('"-wd"', ["-nw=2"], ["-nw=4"]),
        ('"-wd"', ["-nw", "2"], ["-nw", "4"]),
    ],
)
def test_the_command_is_changed_where_argparse_reads_the_option(
    others: str, given: list[str], changed: list[str] | None
) -> None:
    """`--work` beside `--workers` is an option of its own."""
    head = HEAD.replace('"--workers"', '"-w", "-nw", "--workers"')
    source = f"{head}p.add_argument({others})\nargs = p.parse_args()\n{CALL}"
    wanted = None if changed is None else ["python", "train.py", *changed]
    assert command_for(source, edit_of(source, *given)) == wanted
