"""Thirty training scripts of different shapes, for edits that are made together.

A comment such as `#forward` marks a line that a recording would name; `marked` finds it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

HEAD = '''"""Train on images that are made by number."""

import argparse
import contextlib
import functools

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

STEPS = 12


class Images(Dataset):
    """Images of noise."""

    def __init__(self, seed, number=32):
        self.seed, self.number = seed, number

    def __len__(self):
        return self.number

    # Each one is decoded anew.
    def __getitem__(self, index):  #sample
        made = np.random.default_rng(self.seed + int(index)).random((3, 8, 8), dtype=np.float32)
        return torch.tensor(made), int(index) % 4  #array


class Net(nn.Module):
    """A small network."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
        self.head = nn.Linear(8, 4)

    def forward(self, images):
        return self.head(self.body(images).flatten(1))


def timed(function):
    """Pass every call on."""

    @functools.wraps(function)
    def inner(*args, **keywords):
        return function(*args, **keywords)

    return inner


class Wrapped:
    """A loader that hands on another one's batches."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        yield from self.loader


'''

# Each makes `loader` for training and `validation`, of a twin that is as long.
LOADERS = {
    "two lines": """
        validation = DataLoader(Images(900), batch_size=4)
        loader = DataLoader(Images(0), batch_size=4, shuffle=True)  #loader
    """,
    "many lines": """
        loader = DataLoader(  #loader
            Images(0),
            batch_size=4,  # small
            shuffle=True,  # every epoch
            # nothing else
        )
        validation = DataLoader(Images(900), batch_size=4)
    """,
    "wrapped": """
        inner = DataLoader(Images(0), 4, shuffle=True)  #loader
        loader = Wrapped(inner)
        validation = Wrapped(DataLoader(Images(900), batch_size=4))
    """,
    "dictionary": """
        loaders = {
            "val": DataLoader(Images(900), batch_size=4),
            "train": DataLoader(Images(0), batch_size=4, shuffle=True, drop_last=True),  #loader
        }
        loader, validation = loaders["train"], loaders["val"]
    """,
    "comprehension": """
        loader, validation = [
            DataLoader(Images(seed), batch_size=4, shuffle=seed == 0)  #loader
            for seed in (0, 900)
        ]
    """,
    "workers asked for": """
        loader = DataLoader(Images(0), batch_size=4, num_workers=0, pin_memory=False)  #loader
        validation = DataLoader(Images(900), batch_size=4, num_workers=0)
    """,
}
STEP = """
    # to the device
    images, labels = images.to(device), labels.to(device)
    scale = torch.ones(1).to(device)  #moved
    # forward
    outputs = model(images)  #forward
    loss = criterion(outputs, labels) * scale.mean()
    optimizer.zero_grad()
    loss.backward()  #backward
    torch.cpu.synchronize()  #wait
    optimizer.step()  # learn
    print(f"loss {loss.item():.4f}", flush=True)
"""
EVALUATE = '''
def evaluate(model, loader, device):
    """Count what is right."""
    model.eval()
    right = 0
    for images, labels in loader:
        right += (model(images.to(device)).argmax(1) == labels.to(device)).sum().item()  #eval
    model.train()
    return right


'''
MADE = """
    device = torch.device("cpu")
    model = Net().to(device)  #model
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)  #optimizer
"""
SHOWN = 'print("right", evaluate(model, validation, device))'


@dataclass(frozen=True)
class Script:
    """One program: its name and source; `holder`: what the model goes by before the loop."""

    name: str
    source: str
    call: str = "model"
    holder: str = "model"

    def marked(self, mark: str) -> list[int]:
        """Return the lines (1-based) with a mark."""
        lines = enumerate(self.source.splitlines(), 1)
        return [number for number, line in lines if line.rstrip().endswith(f"#{mark}")]


def _at(level: int, *parts: str) -> str:
    """Return code at a level of indentation."""
    dedented = (textwrap.dedent(part).strip("\n") for part in parts)
    return "\n".join(textwrap.indent(part, "    " * level) for part in dedented) + "\n"


def _loop(level: int, epochs: str = "for epoch in range(2):", step: str = STEP) -> str:
    loop = f"{epochs}\n    for images, labels in loader:\n"
    return _at(level, loop + textwrap.indent(textwrap.dedent(step), "        "))


def _module_level(loaders: str) -> str:
    return EVALUATE + _at(0, "torch.manual_seed(0)", loaders, MADE) + "\n" + _loop(0) + SHOWN


def _main(loaders: str, body: str, before: str = "", guard: str = "main()") -> str:
    head = before + "def main():\n" + _at(1, "torch.manual_seed(0)")
    return f'{head}{body}\n\nif __name__ == "__main__":\n    {guard}\n'


def _in_main(loaders: str) -> str:
    return _main(loaders, _at(1, loaders, MADE) + "\n" + _loop(1) + _at(1, SHOWN), EVALUATE)


def _train_function(loaders: str, decorator: str = "", hints: bool = False) -> str:
    named = "model: nn.Module, loader, criterion, optimizer, device: torch.device"
    given = named if hints else "model, loader, criterion, optimizer, device"
    returns = " -> None" if hints else ""
    train = f'{decorator}def train({given}){returns}:\n    """One epoch."""\n    model.train()\n'
    loop = "for images, labels in loader:\n" + textwrap.indent(textwrap.dedent(STEP), "    ")
    train += _at(1, loop) + "\n\n"
    call = "train(model, loader, criterion, optimizer, device)  #holder"
    epochs = f"for epoch in range(2):\n    {call}\n    {SHOWN}"
    return _main(loaders, _at(1, loaders, MADE, epochs), train + EVALUATE)


def _evaluate_first(loaders: str) -> str:
    return EVALUATE + _train_function(loaders).replace(EVALUATE, "")


def _trainer(loaders: str) -> str:
    made = MADE.replace("model", "self.model").replace("optimizer =", "self.optimizer =")
    made = made.replace("device =", "self.device =").replace("to(device)", "to(self.device)")
    made = made.replace("criterion =", "self.criterion =").replace("self.self.", "self.")
    made = made.replace("#self.model", "#model")
    loaders = textwrap.dedent(loaders) + "\nself.loader, self.validation = loader, validation"
    step = STEP.replace("model(", "self.model(").replace("optimizer", "self.optimizer")
    step = step.replace("device)", "self.device)").replace("criterion(", "self.criterion(")
    loop = _loop(2, step=step).replace("in loader", "in self.loader")
    parts = [
        'class Trainer:\n    """Owns all that trains."""\n\n    def __init__(self):\n',
        _at(2, loaders, made),
        "\n    def fit(self):\n",
        loop,
        '\n\nif __name__ == "__main__":\n',
        _at(1, "torch.manual_seed(0)\ntrainer = Trainer()\ntrainer.fit()"),
    ]
    return "".join(parts)


def _helper(loaders: str) -> str:
    helper = 'def build_model(device):\n    """Make it."""\n    made = Net()\n'
    helper += "    return made.to(device)\n\n\n"
    made = MADE.replace("Net().to(device)", "build_model(device)")
    body = _at(1, loaders, made) + "\n" + _loop(1) + _at(1, SHOWN)
    return _main(loaders, body, helper + EVALUATE)


def _accumulated(loaders: str) -> str:
    step = textwrap.dedent(STEP).replace("optimizer.zero_grad()\n", "")
    step = step.replace(
        "optimizer.step()  # learn",
        "taken += 1\nif taken % 2 == 0:\n    optimizer.step()\n    optimizer.zero_grad()",
    )
    return _main(loaders, _at(1, loaders, MADE, "taken = 0") + _loop(1, step=step))


def _while(loaders: str) -> str:
    step = textwrap.dedent(STEP).strip("\n") + "\ntaken += 1\nif taken == STEPS:\n    break"
    loop = _loop(1, "while taken < STEPS:", textwrap.indent(step, "    "))
    return _main(loaders, _at(1, loaders, MADE, "taken = 0") + loop)


def _in_with(loaders: str) -> str:
    body = _at(1, loaders, MADE) + "    with contextlib.suppress(KeyboardInterrupt):\n" + _loop(2)
    return _main(loaders, body)


def _step_in_with(loaders: str) -> str:
    step = STEP.replace(
        "    outputs = model(images)  #forward\n    loss =",
        "    with torch.enable_grad():\n        outputs = model(images)  #forward\n    loss =",
    )
    return _main(loaders, _at(1, loaders, MADE) + _loop(1, step=step))


def _in_try(loaders: str) -> str:
    body = _at(1, "try:") + _at(2, loaders, MADE) + _loop(2)
    return _main(loaders, body + _at(1, 'finally:\n    print("done")'))


def _closure(loaders: str) -> str:
    inner = "def run_epoch():\n    model.train()\n    for images, labels in loader:\n"
    inner += textwrap.indent(textwrap.dedent(STEP), "        ")
    body = _at(1, loaders, MADE, inner, "for epoch in range(2):\n    run_epoch()  #holder", SHOWN)
    return _main(loaders, body, EVALUATE)


def _options(loaders: str) -> str:
    parse = 'def parse_args():\n    parser = argparse.ArgumentParser()\n    add = "how many"\n'
    parse += '    parser.add_argument("--workers", type=int, default=0, help=add)\n'
    parse += '    parser.add_argument("--lr", type=float, default=1e-3)\n'
    parse += "    return parser.parse_args()\n\n\n"
    loaders = textwrap.dedent(loaders).replace(
        "Images(0), ", "Images(0), num_workers=args.workers, "
    )
    made = textwrap.dedent(MADE).replace("1e-3", "args.lr")
    body = _at(1, "args = parse_args()", loaders, made) + _loop(1) + _at(1, SHOWN)
    return _main(loaders, body, parse + EVALUATE)


def _folds(loaders: str) -> str:
    body = _at(1, loaders, "for fold in range(2):") + _at(2, MADE) + "\n"
    return _main(loaders, body + _loop(2, "for epoch in range(1):") + _at(2, SHOWN), EVALUATE)


def _globals(loaders: str) -> str:
    train = "def train():\n    for images, labels in loader:\n"
    train += textwrap.indent(textwrap.dedent(STEP), "        ") + "\n\n"
    return train + _at(
        0, "torch.manual_seed(0)", loaders, MADE, "for epoch in range(2):\n    train()  #holder"
    )


def _branches(loaders: str) -> str:
    made = textwrap.dedent(MADE).replace(
        "model = Net().to(device)  #model",
        "if STEPS > 1:\n    model = Net()\nelse:\n    model = nn.Identity()\nmodel.to(device)",
    )
    return _main(loaders, _at(1, loaders, made) + _loop(1))


_SHAPES = [
    ("module level", _module_level, ["two lines", "many lines", "dictionary"]),
    ("main", _in_main, ["two lines", "wrapped", "comprehension", "workers asked for"]),
    ("train function", _train_function, ["many lines", "dictionary"]),
    ("evaluate first", _evaluate_first, ["two lines", "wrapped"]),
    ("trainer", _trainer, ["two lines", "many lines", "comprehension"]),
    ("helper", _helper, ["two lines", "workers asked for"]),
    ("accumulated", _accumulated, ["many lines", "two lines"]),
    ("while", _while, ["two lines"]),
    ("with", _in_with, ["dictionary"]),
    ("step in with", _step_in_with, ["two lines"]),
    ("try", _in_try, ["wrapped"]),
    ("closure", _closure, ["two lines"]),
    ("options", _options, ["two lines"]),
    ("folds", _folds, ["many lines"]),
    ("globals", _globals, ["two lines", "comprehension"]),
    ("branches", _branches, ["dictionary"]),
]
_CALLS = {"trainer": "self.model"}


def scripts() -> Iterator[Script]:
    """Yield the scripts."""
    for name, shape, variants in _SHAPES:
        for variant in variants:
            source = HEAD + shape(LOADERS[variant]).rstrip() + "\n"
            called = _CALLS.get(name, "model")
            yield Script(f"{name}, {variant}", source, called, called)
    for decorator in ("@timed\n", "@torch.enable_grad()\n"):
        source = HEAD + _train_function(LOADERS["two lines"], decorator, hints=True)
        yield Script(f"decorated {decorator.strip()}", source)
