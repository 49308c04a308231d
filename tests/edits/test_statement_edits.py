"""Statements at the head of a module: before anything that may train, and effective."""

from __future__ import annotations

import pytest

from torchdoctor.edits import StatementEdit
from torchdoctor.edits.source import edited

ADDED = "torch.set_num_threads(2)"
LOOP = "for x in data:\n    step(x)\n"


def changed(source: str, statement: str = ADDED) -> str | None:
    edit = StatementEdit(file="", statement=statement)
    once = edited(source, edit)
    assert once is None or edited(once, edit) == once
    return once


@pytest.mark.parametrize(
    ("head", "rest"),
    [
        ("import torch\n", LOOP + "import matplotlib\n"),
        ("import torch\n", "with opened() as f:\n    train()\nimport json\n"),
        ("import torch\n", "main()\nimport json\n"),
        ("import torch\nfrom lib import run\n", "run()\nimport json\n"),
        ("import torch\nimport lib\n", "lib.run()\nimport json\n"),
        ("import torch\n", "if __name__ == '__main__':\n    import os\n    main()\n"),
        ("import torch\n", "try:\n    import os\n    main()\nexcept OSError:\n    pass\n"),
        ("import torch\n", "def f():\n    pass\nimport json\n"),
        ("import torch\nimport os\n", "os.environ['A'] = str(1)\nimport json\n" + LOOP),
        ("import os\nos.environ['A'] = str(1)\nimport json\nimport torch\n", LOOP),
        ("import torch\ntry:\n    import apex\nexcept ImportError:\n    apex = None\n", LOOP),
        ("from lib import path\npath()\nimport torch\n", LOOP),
    ],
)
def test_a_statement_stands_before_what_may_train(head: str, rest: str) -> None:
    """`import json` behind the training loop is not the head of the module."""
    assert changed(head + rest) == f"{head}\n{ADDED}\n{rest}"


def test_what_is_imported_behind_a_loop_is_not_there_at_the_head() -> None:
    assert changed(LOOP + "import torch\n") is None
    assert changed("import os\n" + LOOP + "import torch\n") is None


def test_the_program_s_own_statement_is_changed_instead() -> None:
    """It comes later and would overrule an inserted one."""
    source = "import torch\nimport os\ntorch.set_num_threads(8)  # all\n" + LOOP
    assert changed(source) == source.replace("8", "2")
    flag = "torch.backends.cudnn.benchmark = "
    source = f"import torch\ntorch.manual_seed(0)\n{flag}False\n" + LOOP
    assert changed(source, f"{flag}True") == source.replace("False", "True")


@pytest.mark.parametrize(
    "rest",
    [
        "torch.set_num_threads(8)\ntorch.set_num_threads(4)\n",
        "torch.set_num_threads(N)\n",
        "if N:\n    torch.set_num_threads(8)\n",
        "def prepare():\n    torch.set_num_threads(8)\n",
        "x = torch.set_num_threads(8)\n",
        LOOP + "torch.set_num_threads(8)\n",
    ],
)
def test_what_may_be_overruled_is_not_inserted(rest: str) -> None:
    assert changed("import torch\n" + rest) is None


BENCHMARK = "torch.backends.cudnn.benchmark = True"
PRECISION = 'torch.set_float32_matmul_precision("high")'
ALIAS = "import torch\nimport torch.backends.cudnn as cudnn\n"


@pytest.mark.parametrize(
    ("source", "statement", "old", "new"),
    [
        (ALIAS + "cudnn.benchmark = False\n", BENCHMARK, "False", "True"),
        (
            "import torch\nfrom torch.backends import cudnn\ncudnn.benchmark = False\n",
            BENCHMARK, "False", "True",
        ),
        (
            "import torch\nfrom torch import set_num_threads\nset_num_threads(8)\n",
            ADDED, "8", "2",
        ),
    ],
)  # fmt: skip
def test_the_same_setting_by_another_name_is_changed(
    source: str, statement: str, old: str, new: str
) -> None:
    """An inserted one would stand above it, without effect."""
    assert changed(source + LOOP, statement) == source.replace(old, new) + LOOP


@pytest.mark.parametrize(
    ("source", "statement"),
    [
        (ALIAS + "cudnn.benchmark, cudnn.deterministic = False, True\n", BENCHMARK),
        (ALIAS + "cudnn.deterministic = cudnn.benchmark = False\n", BENCHMARK),
        (ALIAS + "def f():\n    cudnn.benchmark = False\n", BENCHMARK),
        (ALIAS + "with cudnn.flags(benchmark=False):\n    train()\n", BENCHMARK),
        (ALIAS + "cudnn.set_flags(True)\n", BENCHMARK),
        (ALIAS + f"{BENCHMARK}\ncudnn.benchmark = False\n", BENCHMARK),
        ("import torch\ntorch.backends.fp32_precision = 'ieee'\n", PRECISION),
        ("import torch\ntorch.backends.cuda.matmul.allow_tf32 = False\n", PRECISION),
    ],
)
def test_a_setting_by_another_name_that_cannot_be_changed_is_left(
    source: str, statement: str
) -> None:
    assert changed(source, statement) is None
