"""Constants: changed where the argument is all that they are for, and where it is the same name."""

from __future__ import annotations

import pytest

from torchdoctor.edits import KeywordEdit
from torchdoctor.edits.source import edited

CALL = "DataLoader(d, num_workers=N)\n"
CHANGED = "DataLoader(d, num_workers=4)\n"


def workers(source: str, file: str = "/home/u/train.py", *command: str) -> str | None:
    """The source with four workers, which asked for again changes nothing more."""
    line = next(n for n, text in enumerate(source.split("\n"), 1) if "DataLoader(" in text)
    edit = KeywordEdit(
        file=file, line=line, callee="DataLoader", keyword="num_workers", value="4",
        position=5, command=command or ("python", "train.py"),
    )  # fmt: skip
    once = edited(source, edit)
    assert once is None or edited(once, edit) == once
    return once


@pytest.mark.parametrize(
    "other",
    [
        "torch.manual_seed(N)\nnn.Linear(64, 10 + N)\n",
        "print(f'{N}')\n",
        "def f(n=N):\n    pass\n",
        "class Net:\n    def f(self):\n        return N\n",
        "M = N\n",
        "val = DataLoader2(e, num_workers=N)\n",
    ],
)
def test_a_constant_with_other_uses_stays(other: str) -> None:
    """It would change the seed, or the size of a layer."""
    assert workers("N = 0\n" + other + CALL) == "N = 0\n" + other + CHANGED
    assert workers("N = 0\n" + CALL + other) == "N = 0\n" + CHANGED + other


def test_a_constant_that_other_modules_may_import_stays() -> None:
    source = "N = 0\n" + CALL
    assert workers(source, "/home/u/data.py") == "N = 0\n" + CHANGED
    assert workers(source, "/home/u/data.py", "trainer", "fit") == "N = 0\n" + CHANGED
    started = "N = 4\n" + CALL
    assert workers(source) == started
    assert workers(source, "/home/u/p/train.py", "python", "-m", "p.train") == started
    assert workers(source, "/home/u/p/train.py", "python", "../p/train.py") == started
    assert workers(source, "/home/u/p/train.py", "python", "/home/u/p/train.py") == started
    local = f"def f():\n    N = 0\n    {CALL}"
    assert workers(local, "/home/u/data.py") == local.replace("N = 0", "N = 4")


@pytest.mark.parametrize(
    "source",
    [
        f"N = 0\nmake = lambda N: {CALL}",
        f"N = 0\ndef make(N):\n    {CALL}",
        "N = 0\nall = [DataLoader(d, num_workers=N) for N in (0, 1)]\n",
        f"N = 0\nfor N in range(2):\n    {CALL}",
        f"N = 0\nwith opened() as N:\n    {CALL}",
        f"N = 0\ntry:\n    f()\nexcept E as N:\n    {CALL}",
        f"N = 0\ndef f():\n    global N\n    N = count()\n{CALL}",
        f"def g():\n    N = 0\n    def f():\n        nonlocal N\n        N = 1\n    {CALL}",
        f"N = 0\nN += 1\n{CALL}",
        f"N = 0\nif (N := 3):\n    pass\n{CALL}",
        f"N = 0\nN.real = 1\ndef N(): pass\n{CALL}",
        f"N = 0\nvars().update(load())\n{CALL}",
        f"class A:\n    N = 0\n    {CALL}",
        f"A, N = 1, 0\n{CALL}",
        f"N = M = 0\n{CALL}",
    ],
)
def test_what_may_be_another_value_is_left_alone(source: str) -> None:
    assert workers(source) is None


def test_star_imports_above_the_constant_do_not_overrule_it() -> None:
    head = "from torch.utils.data import *\n"
    assert workers(head + "N = 0\n" + CALL) == head + "N = 4\n" + CALL
    of_model = "print(vars(model))\n"
    assert workers("N = 0\n" + of_model + CALL) == "N = 4\n" + of_model + CALL


@pytest.mark.parametrize(
    ("head", "value"),
    [
        ("from config import cfg\n", "cfg.DATA.WORKERS"),
        ("from settings import args\n", "args.workers"),
        ("from .settings import WORKERS\n", "WORKERS"),
        ("import settings\n", "settings.WORKERS"),
        ("import os\n", "int(os.environ.get('WORKERS', 0))"),
        ("import os\n", "int(os.getenv('WORKERS') or 0)"),
        ("from os import environ as env\n", "int(env['WORKERS'])"),
        ("import sys\n", "int(sys.argv[1])"),
        ("import json\n", "json.load(open('c.json'))['workers']"),
        ("import torch\n", "torch.load('c.pt')['workers']"),
        ("", "int(input())"),
        ("def max(*a):\n    return 0\n", "max(1, 2)"),
    ],
)
def test_what_comes_from_elsewhere_is_not_overwritten(head: str, value: str) -> None:
    """The configuration file, or the variable, would be without effect."""
    source = f"{head}DataLoader(d, num_workers={value})\n"
    assert workers(source) is None
    line = source.count("\n")
    kept = KeywordEdit(
        file="", line=line, callee="DataLoader", keyword="persistent_workers", value="True",
        needs="num_workers",
    )  # fmt: skip
    assert f"{value}, persistent_workers={value} > 0)" in (edited(source, kept) or "")


@pytest.mark.parametrize(
    ("head", "value"),
    [
        ("import os\n", "min(2, os.cpu_count())"),
        ("from os import cpu_count\n", "cpu_count() // 2"),
        ("import multiprocessing as mp\n", "mp.cpu_count()"),
        ("import torch\n", "2 * torch.cuda.device_count()"),
    ],
)
def test_what_only_the_machine_decides_gets_the_number(head: str, value: str) -> None:
    assert workers(f"{head}DataLoader(d, num_workers={value})\n") == head + CHANGED
