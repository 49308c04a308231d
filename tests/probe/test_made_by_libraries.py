"""A loader or an optimizer that a library makes for a line of the program's."""

from __future__ import annotations

from pathlib import Path

import pytest
from probed import run_probed

from torchdoctor.edits import calls
from torchdoctor.probe import places
from torchdoctor.schema import Location

LIBRARY = """
import functools
import torch

class Net:
    def __init__(self, model):
        self.model = model
        self.setup()
    def setup(self):
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
    def fit(self, data):
        for x in torch.utils.data.DataLoader(data, batch_size=2):
            self.optimizer.zero_grad(); self.model(x).mean().backward(); self.optimizer.step()

class OwnLoader(torch.utils.data.DataLoader):
    def __init__(self, data):
        super().__init__(data, batch_size=2)

def deprecates(init):
    @functools.wraps(init)
    def wrapper(*args, **kwargs):
        init(*args, **kwargs)
    return wrapper

class DecoratedLoader(torch.utils.data.DataLoader):
    @deprecates
    def __init__(self, data):
        super().__init__(data, batch_size=2)

def remembers(init):
    @functools.wraps(init)
    def wrapper(obj, *args, **kwargs):
        init(obj, *args, **kwargs)
    return wrapper
"""
BY_LIBRARY = """
import torch, netlib
netlib.Net(torch.nn.Linear(4, 1)).fit(torch.randn(8, 4))
"""
BY_ITSELF = """
import torch, netlib
{before}
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in {loader}:
    optimizer.zero_grad(); model(x).mean().backward(); optimizer.step()
"""
PLAIN = "torch.utils.data.DataLoader(torch.randn(8, 4), batch_size=2)"
WRAPPED = "L = torch.utils.data.DataLoader; L.__init__ = netlib.remembers(L.__init__)"


@pytest.mark.parametrize(
    ("program", "through"),
    [
        (BY_LIBRARY, "netlib"),
        (BY_ITSELF.format(before="", loader=PLAIN), None),
        (BY_ITSELF.format(before="", loader="netlib.OwnLoader(torch.randn(8, 4))"), None),
        (BY_ITSELF.format(before="", loader="netlib.DecoratedLoader(torch.randn(8, 4))"), None),
        (BY_ITSELF.format(before=WRAPPED, loader=PLAIN), None),
    ],
    ids=["library", "plain", "derived", "decorated", "wrapped"],
)
def test_who_makes_it(program: str, through: str | None, tmp_path: Path) -> None:
    """The line that calls the library was said to be `DataLoader(..., num_workers=1)`."""
    installed = tmp_path / "site-packages"
    installed.mkdir()
    (installed / "netlib.py").write_text(LIBRARY)
    start = f"import sys; sys.path.append({str(installed)!r})"
    (tmp_path / "train.py").write_text(start + program)
    run = run_probed(["train.py"], tmp_path, tmp_path, forked=True)
    assert run.returncode == 0, run.stderr
    assert run.said() == []
    for made in (run.main["loaders"][0], run.main["optimizers"][0]):
        assert made["location"]["file"].endswith("train.py")
        assert made["location"]["through"] == through


DERIVED = """
import netlib
class Derived(netlib.Net):
    pass
"""


@pytest.mark.parametrize("called", ["netlib.Net", "derivedlib.Derived", "Own"])
def test_whose_object_was_called(called: str, tmp_path: Path) -> None:
    """The method of TRL's trainers stands in transformers, and their arguments in TRL."""
    installed = tmp_path / "site-packages"
    installed.mkdir()
    (installed / "netlib.py").write_text(LIBRARY)
    (installed / "derivedlib.py").write_text(DERIVED)
    (tmp_path / "train.py").write_text(
        f"import sys; sys.path.append({str(installed)!r})\nimport torch, netlib, derivedlib\n"
        "class Own(derivedlib.Derived):\n    pass\n"
        f"{called}(torch.nn.Linear(4, 1)).fit(torch.randn(8, 4))"
    )
    run = run_probed(["train.py"], tmp_path, tmp_path, forked=True)
    assert run.returncode == 0, run.stderr
    expected = "netlib" if called == "netlib.Net" else "derivedlib"
    assert [one["library"] for one in run.main["passes"]] == [expected]


EACH_EPOCH = """
import weakref
import torch
def fit(model, data):
    optimizer, before = torch.optim.SGD(model.parameters(), lr=0.1), lambda: None
    for epoch in range(3):
        loader = torch.utils.data.DataLoader(data, batch_size=2)
        print("before:", before())
        before = weakref.ref(loader)
        for x in loader:
            optimizer.zero_grad(); model(x).mean().backward(); optimizer.step()
"""


def test_a_timed_launch_keeps_nothing_of_a_library_alive(tmp_path: Path) -> None:
    """The loader of each epoch stayed until the library returned, and so did its workers."""
    installed = tmp_path / "site-packages"
    installed.mkdir()
    (installed / "netlib.py").write_text(EACH_EPOCH)
    start = f"import sys; sys.path.append({str(installed)!r})\nimport torch, netlib\n"
    (tmp_path / "train.py").write_text(
        start + "netlib.fit(torch.nn.Linear(4, 1), torch.randn(8, 4))"
    )
    boundary = {"kind": "optimizer", "ident": 0, "every": 1}
    run = run_probed(["train.py"], tmp_path, tmp_path, forked=True, purpose="time", phases=False,
                     boundary=boundary, measure_steps=1000)  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == ["before: None"] * 3


def test_the_library_is_named_where_nothing_can_be_edited() -> None:
    assert calls.made_by_library(Location(file="/train.py", line=3)) == ""
    at = Location(file="/train.py", line=3, through="skorch")
    assert "skorch makes it" in calls.made_by_library(at)


def test_torchdoctors_own_files_are_not_the_users() -> None:
    """A recompilation was said to come from a line of ours."""
    assert not places.is_users(calls.__file__)
    assert places.is_users(__file__)
