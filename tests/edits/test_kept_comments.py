"""Comments and layout around what an edit adds or takes away: nobody's words are lost."""

from __future__ import annotations

import pytest

from torchdoctor.edits import (
    BatchCastEdit,
    DropKeywordEdit,
    Edit,
    NonBlockingEdit,
    OnDeviceEdit,
    RemoveEdit,
)
from torchdoctor.edits.source import edited

ZEROS = OnDeviceEdit(file="", line=2, maker="zeros")
DROP = DropKeywordEdit(file="", line=1, callee="D", keyword="k")
REMOVE = RemoveEdit(file="", line=3, callee="sync")
COPY = NonBlockingEdit(file="", line=6)
CAST = BatchCastEdit(file="", line=1, names=("x",))


@pytest.mark.parametrize(
    ("edit", "before", "after"),
    [
        (
            ZEROS,
            "import torch\nx = torch.zeros(\n    4,\n    5,  # wide\n).to(device)\n",
            "import torch\nx = torch.zeros(\n    4,\n    5,  # wide\n    device=device,\n)\n",
        ),
        (
            COPY,
            "for x in d:\n    x = x.to(\n        device,  # the first\n"
            "        t,  # half\n    )\n    m(x)\n",
            "for x in d:\n    x = x.to(\n        device,  # the first\n"
            "        t,  # half\n        non_blocking=True,\n    )\n    m(x)\n",
        ),
        (
            DROP,
            "D(\n    a,  # a\n    # of k\n    k=1,  # k\n    # of b\n    b=2,  # b\n)\n",
            "D(\n    a,  # a\n    # of k\n    # of b\n    b=2,  # b\n)\n",
        ),
        (
            DROP,
            "D(\n    k=1,  # k\n    # of b\n    b=2,\n)\n",
            "D(\n    # of b\n    b=2,\n)\n",
        ),
        (DROP, "D(\n    a,\n    # of k\n    k=1,\n)\n", "D(\n    a,\n    # of k\n)\n"),
        (DROP, "D(a, k=1)\n", "D(a)\n"),
        (DROP, "D(a, k=1, b=2)\n", "D(a, b=2)\n"),
        (DROP, "D(k=1, b=2)\n", "D(b=2)\n"),
        (DROP, "D(a,\n  k=1)\n", "D(a)\n"),
        (DROP, "D(a,\n  k=1, b=2)\n", "D(a,\n  b=2)\n"),
        (
            REMOVE,
            "for x in y:\n    # fast\n    sync()\n    # then\n    m(x)\n",
            "for x in y:\n    # fast\n    # then\n    m(x)\n",
        ),
        (
            REMOVE,
            "for x in y:\n    m(x)\n    sync()\n",
            "for x in y:\n    m(x)\n",
        ),
        (
            RemoveEdit(file="", line=4, callee="sync"),
            "for x in y:\n    m(x)\n    # wait\n    sync()\nf()\n",
            "for x in y:\n    m(x)\n    # wait\nf()\n",
        ),
        (
            CAST,
            'for x in d:\n    """One step."""\n    m(x)\n',
            'for x in d:\n    """One step."""\n    x = x.float()\n    m(x)\n',
        ),
    ],
)
def test_what_is_said_beside_an_edit_stays(edit: Edit, before: str, after: str) -> None:
    assert edited(before, edit) == after


def test_a_comment_between_a_tensor_and_its_move_is_not_dropped() -> None:
    source = "import torch\nx = torch.zeros(4).to(\n    device  # the first\n)\n"
    assert edited(source, ZEROS) is None
