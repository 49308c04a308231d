"""Edits of how tensors are made, moved and kept: made where it is sure, else not at all."""

from __future__ import annotations

import pytest

from torchdoctor.edits import AsTensorEdit, DetachEdit, Edit, OnDeviceEdit
from torchdoctor.edits.source import edited

HEAD = "import numpy as np\nimport torch\n"


def made(line: str, edit: Edit, head: str = HEAD) -> str | None:
    """The last line after the edit, which made twice changes nothing more."""
    once = edited(head + line + "\n", edit)
    if once is None:
        return None
    assert edited(once, edit) == once
    return once.removeprefix(head).rstrip("\n")


def arrays(line: str, joined: bool = False, head: str = HEAD) -> str | None:
    return made(line, AsTensorEdit(file="", line=head.count("\n") + 1, joined=joined), head)


def test_an_array_is_shared_and_other_arguments_stay() -> None:
    assert arrays("x = torch.tensor(a.astype('f4'))") == "x = torch.as_tensor(a.astype('f4'))"
    assert (
        arrays("f(torch.tensor(a, dtype=torch.float32, device=d))")
        == "f(torch.as_tensor(a, dtype=torch.float32, device=d))"
    )


def test_a_list_of_arrays_is_joined_by_numpy_under_its_name() -> None:
    assert arrays("x = torch.tensor(rows)", True) == "x = torch.as_tensor(np.array(rows))"
    head = "import numpy\nimport torch\n"
    joined = arrays("x = torch.tensor([a,b])", True, head)
    assert joined == "x = torch.as_tensor(numpy.array([a,b]))"


@pytest.mark.parametrize(
    "line",
    [
        "x = torch.tensor(a, requires_grad=True)",
        "x = torch.tensor(*parts)",
        "x = torch.tensor(data=a)",
        "x = torch.tensor(a, pin_memory=True)",
        "x = torch.tensor(a, names=('n',))",
        "x = torch.tensor(a, torch.float32)",
        "x, y = torch.tensor(a), torch.tensor(b)",
        "x = tensor(a)",
    ],
)
def test_an_array_is_left_where_it_is_not_sure(line: str) -> None:
    assert arrays(line) is None


def test_numpy_must_have_been_imported() -> None:
    assert arrays("x = torch.tensor(rows)", True, "import torch\n") is None


def on_device(line: str) -> str | None:
    return made(line, OnDeviceEdit(file="", line=3, maker="zeros"))


@pytest.mark.parametrize(
    ("line", "after"),
    [
        ("x = torch.zeros(4).to(device)", "x = torch.zeros(4, device=device)"),
        (
            "x = torch.zeros(4, dtype=t).to(self.device, non_blocking=True)",
            "x = torch.zeros(4, dtype=t, device=self.device)",
        ),
        ("x = torch.zeros(4).cuda()", 'x = torch.zeros(4, device="cuda")'),
        ('x = torch.zeros(4).to("cuda:1")', 'x = torch.zeros(4, device="cuda:1")'),
        ("x = torch.zeros(4).to(torch.float16)", None),
        ("x = torch.zeros(4).to(other)", None),
        ("x = torch.zeros(4)", None),
        ("x = torch.zeros(*sizes).to(device)", None),
    ],
)
def test_a_tensor_is_made_where_it_is_used(line: str, after: str | None) -> None:
    assert on_device(line) == after


def detached(source: str, text: str, name: str, from_item: bool = False) -> str | None:
    number = next(n for n, line in enumerate(source.splitlines(), 1) if text in line)
    edit = DetachEdit(file="", line=number, name=name, from_item=from_item)
    return edited(source, edit)


@pytest.mark.parametrize(
    ("line", "name", "after"),
    [
        ("total += loss", "total", "total += loss.detach()"),
        ("total += loss * n", "total", "total += (loss * n).detach()"),
        ("total = total + loss", "total", "total = total + loss.detach()"),
        ("self.total += f(loss)", "self.total", "self.total += f(loss).detach()"),
        ("losses.append(loss)", "losses", "losses.append(loss.detach())"),
        ("total += loss.item()", "total", "total += loss.item()"),
        ("total -= loss", "total", None),
        ("other += loss", "total", None),
        ("losses.append((x, loss))", "losses", "losses.append((x, loss).detach())"),
    ],
)
def test_what_is_kept_loses_its_graph(line: str, name: str, after: str | None) -> None:
    if "(x, loss)" in line:
        # A tuple has no detach(): left alone.
        after = None
    assert detached(f"{line}\n", line, name) == (None if after is None else f"{after}\n")


SUMMED = """import torch
def train():
    total = 0.0
    for x in loader:
        total += loss.item() * len(x)
    print(f"mean {total / n:.3f}")
"""


def test_a_sum_that_is_only_shown_stays_on_the_device() -> None:
    after = detached(SUMMED, "total +=", "total", from_item=True)
    assert after == SUMMED.replace("loss.item()", "loss.detach()")


@pytest.mark.parametrize(
    "use",
    [
        "total /= 4",
        "return float(total)",
    ],
)
def test_a_sum_that_is_shown_as_a_number_stays_on_the_device(use: str) -> None:
    source = f"{SUMMED}    {use}\n"
    after = detached(source, "total +=", "total", from_item=True)
    assert after == source.replace("loss.item()", "loss.detach()")


@pytest.mark.parametrize(
    "use",
    [
        "return total",
        "if total > 3: stop()",
        "scores.append(total)",
        "best = total",
        "best += total",
        "total //= 4",
        "print(total)",
        "print(total / n)",
        "print(f'{total}')",
        "print(f'{total!r:.3f}')",
        "print(f'{total:>9}')",
        "print('%s' % total)",
        "print('%.3f: %s' % (n, total))",
        "print('{} {:.3f}'.format(total, n))",
        "print('{1} {0:.3f}'.format(n, total))",
        "logger.info('%s', total)",
        "bar.set_postfix(loss=total)",
        "json.dumps(total)",
        "x = (total, n)",
        "global total",
    ],
)
def test_a_sum_that_somebody_needs_as_a_number_is_left(use: str) -> None:
    assert detached(f"{SUMMED}    {use}\n", "total +=", "total", from_item=True) is None


@pytest.mark.parametrize(
    "after",
    [
        "total.backward()",
        "(total / 4).backward()",
        "torch.autograd.backward(total)",
        "torch.autograd.grad(total, w)",
        "scaler.scale(total).backward()",
        "accelerator.backward(total)",
        "mean = total / 4\n    mean.backward()",
    ],
)
def test_a_sum_that_gradients_come_from_keeps_its_graph(after: str) -> None:
    for keeps in ("total += loss", "total = total + loss", "total.append(loss)"):
        source = f"def f():\n    for x in y:\n        loss = m(x)\n        {keeps}\n    {after}\n"
        assert edited(source, DetachEdit(file="", line=4, name="total")) is None


def test_a_sum_beside_the_backward_pass_loses_its_graph() -> None:
    rest = "        (loss / 2).backward()\n    return total / 4\n\n"
    rest += "def g(total):\n    total.backward()\n"
    source = f"def f():\n    for x in y:\n        loss = m(x)\n        total += loss\n{rest}"
    changed = edited(source, DetachEdit(file="", line=4, name="total"))
    assert changed == source.replace("+= loss", "+= loss.detach()")


@pytest.mark.parametrize(
    "learn",
    [
        "    def learn(self):\n        self.total.backward()\n",
        "    def learn(self):\n        (self.total / 4).backward()\n",
        "    def learn(self):\n        mean = self.total / 4\n        mean.backward()\n",
        "    def mean(self):\n        return self.total\n\nKept().mean().backward()\n",
        "\ndef learn(kept):\n    kept.total.backward()\n",
    ],
)
def test_an_attribute_that_another_method_learns_from_keeps_its_graph(learn: str) -> None:
    source = f"class Kept:\n    def add(self, loss):\n        self.total += loss\n\n{learn}"
    assert edited(source, DetachEdit(file="", line=3, name="self.total")) is None
    other = source.replace("total", "shown", 1)
    changed = edited(other, DetachEdit(file="", line=3, name="self.shown"))
    assert changed == other.replace("+= loss", "+= loss.detach()")


def test_a_global_sum_that_another_function_learns_from_keeps_its_graph() -> None:
    source = (
        "def add(loss):\n    global total\n    total += loss\n\ndef f():\n    total.backward()\n"
    )
    assert edited(source, DetachEdit(file="", line=3, name="total")) is None
