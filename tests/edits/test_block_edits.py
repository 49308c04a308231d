"""Edits of whole statements: what goes under a `with`, and what goes before the loop."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from written_code import same_code

from torchdoctor.edits import BeforeLoopEdit, Edit, InputEdit, KeywordEdit, RemoveEdit, WithEdit
from torchdoctor.edits.diff import edited_files
from torchdoctor.edits.source import edited

AUTOCAST = "torch.autocast('cpu')"


def line_of(source: str, text: str) -> int:
    return next(n for n, line in enumerate(source.splitlines(), 1) if text in line)


def autocast(source: str, call: str = "model(", name: str = "model") -> str | None:
    edit = WithEdit(
        file="", line=line_of(source, call), callee=name,
        before=line_of(source, "backward()"), context=AUTOCAST,
    )  # fmt: skip
    once = edited(source, edit)
    if once is not None:
        assert edited(once, edit) == once, "the second time changes nothing"
    return once


def before(source: str, statement: str, at: str, name: str = "model", **more) -> str | None:
    edit = BeforeLoopEdit(file="", line=line_of(source, at), statement=statement, name=name, **more)
    once = edited(source, edit)
    if once is not None:
        assert edited(once, edit) == once, "the second time changes nothing"
    return once


def test_forward_and_loss_go_under_the_context_and_comments_stay() -> None:
    source = """import torch
for x, y in loader:
    optimizer.zero_grad()
    # the forward pass
    out = model(x)  # logits
    loss = criterion(
        out,
        y,
    )
    loss.backward()
    optimizer.step()
"""
    assert (
        autocast(source)
        == """import torch
for x, y in loader:
    optimizer.zero_grad()
    # the forward pass
    with torch.autocast('cpu'):
        out = model(x)  # logits
        loss = criterion(
            out,
            y,
        )
    loss.backward()
    optimizer.step()
"""
    )


def test_what_stands_behind_the_loss_stays_where_it_is() -> None:
    source = """import torch
for x, y in loader:
    output = model(x)
    self.loss = criterion(output, y)
    self.loss += penalty
    # count what was right
    right = accuracy(output, y)
    losses.update(self.loss.item(), x.size(0))
    # learn
    optimizer.zero_grad()
    self.loss.backward()
"""
    wanted = """import torch
for x, y in loader:
    with torch.autocast('cpu'):
        output = model(x)
        self.loss = criterion(output, y)
        self.loss += penalty
    # count what was right
    right = accuracy(output, y)
    losses.update(self.loss.item(), x.size(0))
    # learn
    optimizer.zero_grad()
    self.loss.backward()
"""
    assert same_code(autocast(source), wanted)


def test_what_is_gathered_for_the_loss_goes_along() -> None:
    source = """import torch
for x in loader:
    out = model(x)
    losses.append(out.mean())
    optimizer.zero_grad()
    sum(losses).backward()
"""
    forward = "    out = model(x)\n    losses.append(out.mean())\n"
    wrapped = f"    with {AUTOCAST}:\n" + textwrap.indent(forward, "    ")
    assert same_code(autocast(source), source.replace(forward, wrapped))


@pytest.mark.parametrize(
    ("before", "device"),
    [
        ("device = torch.device('cpu')", "device.type"),
        ("device = args.device", "torch.device(device).type"),
        ("args.device = torch.device('cpu')", '"cpu"'),
        ("def f():\n    device = 'cuda'", '"cpu"'),
        ("device_type = 'cuda' if 'cuda' in device else 'cpu'", "device_type"),
        ("accelerator = Accelerator(cpu=True)", "accelerator.device.type"),
    ],
)
def test_the_programs_own_device_is_named(before: str, device: str) -> None:
    """A program that runs on other machines as well does so with the edit."""
    source = f"import torch\n{before}\nloss = model(x)\nloss.backward()\n"
    line = line_of(source, "model(")
    edit = WithEdit(
        file="", line=line, callee="model", before=line + 1,
        context="torch.autocast(device_type={device})", device="cpu",
    )  # fmt: skip
    changed = edited(source, edit)
    assert changed is not None
    assert f"with torch.autocast(device_type={device}):" in changed
    assert edited(changed, edit) == changed


def test_a_function_that_gets_the_device_names_it() -> None:
    source = "import torch\ndef train(model, device):\n    z = model(x)\n    z.backward()\n"
    edit = WithEdit(
        file="", line=3, callee="model", before=4,
        context="torch.autocast({device})", device="cpu",
    )  # fmt: skip
    assert "with torch.autocast(torch.device(device).type):" in (edited(source, edit) or "")
    made = source + "def main():\n    device = torch.device('cpu')\n    train(model, device)\n"
    assert "with torch.autocast(device.type):" in (edited(made, edit) or "")


def test_the_device_of_a_trainer_is_its_own() -> None:
    source = """import torch
class Trainer:
    def __init__(self):
        self.device = 'cpu'
    def run(self):
        z = self.model(x)
        z.backward()
"""
    edit = WithEdit(
        file="", line=6, callee="self.model", before=7,
        context="torch.autocast({device})", device="cpu",
    )  # fmt: skip
    changed = edited(source, edit)
    assert changed is not None
    assert "with torch.autocast(torch.device(self.device).type):" in changed


def test_a_blank_line_keeps_a_new_statement_apart_from_a_block() -> None:
    source = "import torch\nif dry:\n    epochs = 1\n\nfor x in loader:\n    model(x)\n"
    changed = before(source, "model.compile()", "model(x)")
    assert changed == source.replace("\nfor", "\nmodel.compile()\n\nfor")


def test_a_function_that_calls_the_model_is_known_by_its_name() -> None:
    source = """import torch
for x in loader:
    loss = self.steps.loss_of(x)
    loss.backward()
"""
    made = "loss = self.steps.loss_of(x)"
    wanted = source.replace(made, f"with {AUTOCAST}:\n        {made}")
    assert same_code(autocast(source, call="loss_of", name="loss_of"), wanted)
    assert autocast(source, call="loss_of", name="other") is None


def test_each_of_several_passes_gets_its_context(tmp_path: Path) -> None:
    source = """import torch
for x in loader:
    real = d(x)
    real.backward()
    fake = g(z)
    out = d(fake)
    out.backward()
"""
    at = str(tmp_path / "train.py")
    Path(at).write_text(source)
    edits: list[Edit] = [
        WithEdit(file=at, line=3, callee="d", before=4, context=AUTOCAST),
        WithEdit(file=at, line=5, callee="g", before=7, context=AUTOCAST),
    ]
    files = edited_files(edits)
    assert files is not None
    wanted = """import torch
for x in loader:
    with torch.autocast('cpu'):
        real = d(x)
    real.backward()
    with torch.autocast('cpu'):
        fake = g(z)
        out = d(fake)
    out.backward()
"""
    assert same_code(files[at][1], wanted)


def test_the_innermost_common_block_is_chosen() -> None:
    source = """import torch
def train():
    for micro in range(4):
        with ctx:
            logits, loss = model(X, Y)
            loss = loss / 4
        X, Y = get_batch()
        scaler.scale(loss).backward()
"""
    wanted = source.replace("with ctx", f"with {AUTOCAST}, ctx")
    assert same_code(autocast(source), wanted)


@pytest.mark.parametrize(
    ("store", "backward"),
    [
        ('losses["ce"] = crit(out, y)', "sum(losses.values()).backward()"),
        ("losses[0] = crit(out, y)", "sum(losses).backward()"),
        ('state["loss"] = crit(out, y)', 'state["loss"].backward()'),
        ("self.state[0].loss = crit(out, y)", "self.state[0].loss.backward()"),
        ("state.loss = crit(out, y)", "total(state).backward()"),
        ("add_losses(losses, out, y)", "sum(losses).backward()"),
        ("loss = crit(out, y)", "self.manual_backward(loss)"),
        ("loss = crit(out, y)", "scaler(loss, parameters)"),
        ("loss = crit(out, y)", "learn(loss)"),
    ],
)
def test_a_loss_that_is_kept_in_an_object_is_made_inside(store: str, backward: str) -> None:
    source = f"""import torch
def learn(loss):
    loss.backward()
for x, y in loader:
    out = model(x)
    {store}
    optimizer.zero_grad()
    {backward}  # learns
"""
    edit = WithEdit(file="", line=5, callee="model", before=8, context=AUTOCAST)
    wrapped = f"    with {AUTOCAST}:\n        out = model(x)\n        {store}\n    optimizer"
    assert wrapped in (edited(source, edit) or "")


@pytest.mark.parametrize(
    ("backward", "body"),
    [
        ("self.backward()", "self.loss = self.crit(self.out, self.y)"),
        ("self.backward_G()", "self.loss = self.crit(self.out, self.y)"),
        ("self.learn_from(self.out)", "self.loss = self.crit(out, self.y)"),
    ],
)
def test_a_loss_that_a_method_makes_is_not_left_outside(backward: str, body: str) -> None:
    """As in CycleGAN's code: the forward pass alone would go under the context."""
    name = backward[5 : backward.index("(")]
    source = f"""import torch
class Model:
    def forward(self):
        self.out = self.net(self.x)
    def {name}(self, out=None):
        {body}
        self.loss.backward()
    def optimize(self):
        self.forward()
        self.optimizer.zero_grad()
        {backward}
        self.optimizer.step()
"""
    edit = WithEdit(file="", line=9, callee="self.forward", before=11, context=AUTOCAST)
    assert edited(source, edit) is None


UNSURE = {
    "in another function": "import torch\ndef f(x):\n    return model(x)\nf(1).backward()\n",
    "in one statement": "import torch\nmodel(x).sum().backward()\n",
    "another step between": "import torch\nz = model(x)\no.step()\nz.backward()\n",
    "torch has another name": "import torch as t\nz = model(x)\nz.backward()\n",
    "called twice on the line": "import torch\nz = model(x) + model(y)\nz.backward()\n",
    "another name": "import torch\nz = net(x)\nz.backward()  # model(\n",
}


@pytest.mark.parametrize("name", list(UNSURE))
def test_what_is_not_certain_is_not_edited(name: str) -> None:
    assert autocast(UNSURE[name]) is None


def test_a_statement_goes_before_the_outermost_loop_of_the_function() -> None:
    source = """import torch
def main():
    model = Net()
    # epochs
    for epoch in range(3):
        for x in loader:
            train(model, x)
"""
    assert (
        before(source, "model.compile()", at="train(model")
        == """import torch
def main():
    model = Net()
    model.compile()
    # epochs
    for epoch in range(3):
        for x in loader:
            train(model, x)
"""
    )


def test_a_loop_that_makes_the_model_is_passed_over() -> None:
    source = """import torch
for trial in range(2):
    (model, loss), n = build(), 1
    for x in loader:
        model(x)
"""
    wanted = """import torch
for trial in range(2):
    (model, loss), n = build(), 1
    model.compile()
    for x in loader:
        model(x)
"""
    assert same_code(before(source, "model.compile()", at="model(x)"), wanted)


@pytest.mark.parametrize(
    ("name", "maker"),
    [
        ("model", "def setup(lr):\n    global model, lrs\n    model = Net(lr)\n"),
        ("model", "def new():\n    global model\n    model = Net()\ndef setup(lr):\n    new()\n"),
        ("o.net", "def setup(lr):\n    o.net = Net(lr)\n"),
    ],
)
def test_a_loop_that_makes_the_model_in_a_function_is_passed_over(name: str, maker: str) -> None:
    """Before the loop there is no such name yet."""
    source = f"import torch\n{maker}for lr in lrs:\n    setup(lr)\n    for x in d:\n        f(x)\n"
    changed = before(source, f"{name}.compile()", at="f(x)", name=name)
    assert changed == source.replace("    for x", f"    {name}.compile()\n    for x")
    flat = f"import torch\n{maker}for lr in lrs:\n    setup(lr)\n    f(x)\n"
    assert before(flat, f"{name}.compile()", at="f(x)", name=name) is None
    local = flat.replace("global", "print; #").replace("o.net =", "net =")
    local = local.replace("for lr", f"{name.split('.')[0]} = Net()\nfor lr")
    assert f"\n{name}.compile()\nfor" in (before(local, f"{name}.compile()", "f(x)", name) or "")


def test_without_a_loop_the_statement_goes_before_the_line_where_that_is_safe() -> None:
    source = "import torch\nmodel = Net()\nif True:\n    Trainer(model).fit()\n"
    wanted = (
        "import torch\nmodel = Net()\nif True:\n    model.compile()\n    Trainer(model).fit()\n"
    )
    assert before(source, "model.compile()", at="fit()", needs_loop=False) == wanted
    assert before(source, "model.compile()", at="fit()") is None


@pytest.mark.parametrize(
    "own",
    [
        "if args.compile:\n    model.compile()\n",
        "if args.compile:\n    model = torch.compile(model)\n",
        "if args.compile:\n    model.compile(mode='max-autotune')\n",
        "def prepare(model):\n    model.compile()\n",
        "for one in models:\n    model.compile()\n",
    ],
)
def test_a_compile_call_that_some_runs_pass_is_not_the_fix_made_permanent(own: str) -> None:
    """A second one would compile what is compiled, where the option is given."""
    source = f"import torch\n{own}for x in loader:\n    train(model, x)\n"
    assert before(source, "model.compile()", at="train(model") is None


def test_a_compile_call_that_every_run_passes_stays_alone() -> None:
    for head in ("model.compile()\n", "import re\nmodel.compile()\nre.compile('model')\n"):
        source = f"import torch\n{head}if x:\n    for x in loader:\n        train(model, x)\n"
        assert before(source, "model.compile()", at="train(model") == source


EACH = """for one in model.modules():
    if type(one).__name__ == "Block":
        one.compile()"""


def test_a_loop_of_its_own_is_put_before_the_loop_once() -> None:
    source = """import torch
def main():
  model = Net()

  # epochs
  for x in loader:
    model(x)
"""
    wanted = """import torch
def main():
  model = Net()

  for one in model.modules():
    if type(one).__name__ == "Block":
      one.compile()
  # epochs
  for x in loader:
    model(x)
"""
    edited = before(source, EACH, at="model(x)")
    assert edited is not None and edited.replace("\n\n", "\n") == wanted.replace("\n\n", "\n")
    assert before(edited, EACH, at="model(x)") == edited


def test_a_loop_of_its_own_overwrites_no_name() -> None:
    source = "import torch\none = 1\nfor x in loader:\n    model(x)\n"
    assert before(source, EACH, at="model(x)") is None


def test_a_loop_of_another_function_is_no_loop_of_this_one() -> None:
    source = """import torch
for x in range(3):
    def inner():
        model(x)
    inner()
"""
    assert before(source, "model.compile()", at="model(x)") is None


@pytest.mark.parametrize(
    ("call", "wanted"),
    [
        ("model(x)", "model(x.half())"),
        ("model(x[0], mask=m)", "model(x[0].half(), mask=m)"),
        ("model(x.to(d)).sum()", "model(x.to(d).half()).sum()"),
        ("model(*x)", None),
        ("model(input=x)", None),
        ("model(x + 1)", None),
        ("model()", None),
    ],
)
def test_a_method_is_chained_to_the_first_argument(call: str, wanted: str | None) -> None:
    edit = InputEdit(file="", line=2, callee="model", method=".half()")
    source = f"import torch\ny = {call}\n"
    found = edited(source, edit)
    assert found == (None if wanted is None else source.replace(call, wanted))
    if found is not None:
        assert edited(found, edit) == found


def test_edits_of_one_file_do_not_move_each_others_lines(tmp_path: Path) -> None:
    source = """import torch
model = Net()
loader = DataLoader(data)
for x in loader:
    loss = model(x)
    loss.backward()
    optimizer.zero_grad()
"""
    path = tmp_path / "train.py"
    path.write_text(source)
    at = str(path)
    edits: list[Edit] = [
        BeforeLoopEdit(file=at, line=5, statement="model.compile()", name="model"),
        WithEdit(file=at, line=5, callee="model", before=6, context=AUTOCAST),
        InputEdit(file=at, line=5, callee="model", method=".half()"),
        KeywordEdit(file=at, line=7, callee="zero_grad", keyword="set_to_none", value="True"),
        KeywordEdit(file=at, line=3, callee="DataLoader", keyword="num_workers", value="2"),
    ]
    files = edited_files(edits)
    assert files is not None
    wanted = """import torch
model = Net()
loader = DataLoader(data, num_workers=2)
model.compile()
for x in loader:
    with torch.autocast('cpu'):
        loss = model(x.half())
    loss.backward()
    optimizer.zero_grad(set_to_none=True)
"""
    assert same_code(files[at][1], wanted)


def test_a_call_that_nobody_needs_is_removed() -> None:
    def without(source: str) -> str | None:
        line = line_of(source, "synchronize")
        return edited(source, RemoveEdit(file="", line=line, callee="synchronize"))

    source = "import torch\nfor x in loader:\n    step(x)\n    torch.cuda.synchronize()\n"
    assert without(source) == source.replace("    torch.cuda.synchronize()\n", "")
    alone = "import torch\nif timed:\n    torch.cuda.synchronize()  # to time it\nstep()\n"
    assert without(alone) == alone.replace("torch.cuda.synchronize()", "pass")
    for kept in ("torch.cuda.synchronize(); step()\n", "x = synchronize()\n"):
        assert without(kept) is None
