"""Linear layers in 8 bits, and back: nothing of the user's model may be another one afterwards."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from partial_recordings import recording
from probed_examples import run_with

from torchdoctor.edits.source import edited
from torchdoctor.fixes import int8_weights
from torchdoctor.schema import process


class Refused(Exception):
    """The fix does not apply."""


class Program:
    """What a fix registers, to be called by the test."""

    def __init__(self) -> None:
        self.begin: Callable[[Any], None]
        self.undo: Callable[[Any], None]
        self.layers = 0
        self.failed: str | None = None

    def on_model(self, begin: Callable[[Any], None], undo: Callable[[Any], None]) -> None:
        self.begin = begin
        self.undo = undo

    def set_reason(self, fact: str) -> None:
        """Take no note of it."""

    def applied(self, layers: int) -> None:
        self.layers = layers

    def reason(self, fact: str, **values: str) -> dict[str, Any]:
        return {"fact": fact, "values": values}

    def refuse(self, fact: str) -> None:
        raise Refused(fact)

    def refuse_for(self, why: dict[str, Any]) -> None:
        self.failed = str(why)

    def guarded(self, function: Callable[[Any], None], why: Any) -> None:
        function(why)


def net() -> torch.nn.Sequential:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4)]
    return torch.nn.Sequential(*layers).eval()


def applied() -> Program:
    program = Program()
    int8_weights.apply(torch, {}, program)
    return program


def test_the_model_is_what_it_was_when_it_is_taken_back() -> None:
    model = net()
    x = torch.rand(8, 32)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    attributes = [set(vars(part)) for part in model.modules()]
    random_state = torch.random.get_rng_state()
    program = applied()
    with torch.no_grad():
        before = model(x)
        for _ in range(2):  # it is switched on and off several times
            program.begin(model)
            assert program.layers == 2
            rounded = model(x)
            assert not torch.equal(rounded, before)
            assert torch.allclose(rounded, before, atol=0.05)
            # Who stores the weights meanwhile stores those of the program.
            assert all(torch.equal(model.state_dict()[name], state[name]) for name in state)
            program.undo(model)
            assert torch.equal(model(x), before)
    assert [set(vars(part)) for part in model.modules()] == attributes
    assert torch.equal(torch.random.get_rng_state(), random_state)


def test_weights_that_were_loaded_meanwhile_are_those_that_are_rounded() -> None:
    model = net()
    x = torch.rand(8, 32)
    program = applied()
    with torch.no_grad():
        program.begin(model)
        program.undo(model)
        for parameter in model.parameters():
            parameter.zero_()
        program.begin(model)
        assert not model(x).any()


def test_what_cannot_be_rounded_is_computed_as_before_and_refuses_the_fix() -> None:
    """A single row without a batch: the kernel raises, and the program must go on all the same."""
    model = net()
    x = torch.rand(32)
    program = applied()
    with torch.no_grad():
        before = model(x)
        program.begin(model)
        assert torch.equal(model(x), before)
    assert program.failed


def tied() -> torch.nn.Module:
    model = torch.nn.Sequential(torch.nn.Embedding(64, 32), torch.nn.Linear(32, 64, bias=False))
    model[1].weight = model[0].weight
    return model.eval()


def hooked() -> torch.nn.Module:
    model = net()
    model[0].register_forward_hook(lambda *_: None)
    return model


def replaced() -> torch.nn.Module:
    model = net()
    vars(model[0])["forward"] = torch.nn.Identity()
    return model


def encoder() -> torch.nn.Module:
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    return torch.nn.Sequential(layer, torch.nn.Linear(32, 4)).eval()


@pytest.mark.parametrize(
    "make",
    [
        tied,
        hooked,
        replaced,
        encoder,
        lambda: net().train(),
        lambda: net().double(),
        lambda: net().to("meta"),
    ],
    ids=["tied", "hooked", "replaced", "fused", "training", "float64", "elsewhere"],
)
def test_a_model_whose_layers_cannot_be_replaced_is_refused(
    make: Callable[[], torch.nn.Module],
) -> None:
    program = applied()
    with pytest.raises(Refused):
        program.begin(make())
    assert not program.layers


def test_a_model_without_linear_layers_is_left_alone() -> None:
    program = applied()
    program.begin(torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3)).eval())
    program.begin(torch.nn.Linear(4, 4).eval())  # nothing holds it in which it could be replaced
    assert not program.layers


def inferring(script: Path) -> dict[str, Any]:
    operators = [{"name": "aten::addmm", "calls_per_step": 8, "self_s": 0.008}]
    model = {"ident": 0, "forwards": 9, "eval_forwards": 9, "linear": 8, "dtypes": ["float32"]}
    return {
        "workload": {"script": str(script)},
        "steps": {"boundary": {"kind": "forward", "learned_by": "forward"}},
        "trace": {"path": "t", "steps": 4, "step_s": 0.01, "operators": operators},
        **process(models=[model]),
    }


@pytest.mark.parametrize(
    ("source", "refused"),
    [
        ('model.load_state_dict(torch.load("weights.pt"))\n', False),
        ('torch.save(outputs, "embeddings.pt")\n', False),
        ('torch.save(model.state_dict(), "weights.pt")\n', True),
        ('torch.save(model, "model.pt")\n', True),
        ('model.save_pretrained("exported")\n', True),
    ],
)
def test_a_program_that_stores_its_weights_is_refused(
    tmp_path: Path, source: str, refused: bool
) -> None:
    script = tmp_path / "infer.py"
    script.write_text(source)
    assert bool(int8_weights.refuses(recording(inferring(script)))) == refused


def test_a_part_that_is_called_by_itself_beside_its_model_is_rounded_once() -> None:
    """As in a model whose encoders are called one by one: both are models that are called."""
    model = torch.nn.Sequential(net(), torch.nn.ReLU()).eval()
    program = applied()
    with torch.no_grad():
        before = model(torch.ones(2, 32))
        program.begin(model)
        program.begin(model[0])
        program.undo(model[0])
        program.undo(model)
        assert torch.equal(model(torch.ones(2, 32)), before)


@pytest.mark.skipif(find_spec("torchao") is None, reason="needs torchao")
def test_torchao_is_taken_where_torch_has_no_quantization(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int8_weights, "_by_torch", lambda _: None)
    test_the_model_is_what_it_was_when_it_is_taken_back()


HELD = """
import torch


class Scorer:
    def __init__(self, model):
        self.model = model

    def score(self, batches):
        outputs = []
        for batch in batches:
            outputs.append(self.model(batch))
        return outputs
"""


def test_a_model_that_an_attribute_holds_is_rounded_in_place_before_its_loop(
    tmp_path: Path,
) -> None:
    """Whoever else holds the model has it in 8 bits too: no name is bound anew."""
    script = tmp_path / "infer.py"
    script.write_text(HELD)
    line = HELD[: HELD.index("self.model(batch)")].count("\n") + 1
    held = {
        "name": "self.model",
        "location": {"file": str(script), "line": line, "function": "Scorer.score"},
    }
    seen = inferring(script)
    seen["processes"][0]["models"][0] |= {"call": held, "holder": held, "holder_depth": 0}
    [edit] = int8_weights.edits({}, recording(seen))
    patched = edited(HELD, edit)
    assert patched is not None
    before, inserted, _ = patched.partition(
        "torch.ao.quantization.quantize_dynamic(self.model, {torch.nn.Linear}, inplace=True)\n"
    )
    assert inserted and before.endswith("outputs = []\n        ")


SEVERAL_MODELS = """
torch.manual_seed(0)
first = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU()).eval()
second = torch.nn.Sequential(torch.nn.Linear(64, 4)).eval()
with torch.inference_mode():
    for _ in range(6):
        output = second(first(torch.rand(4, 32)))
print(tuple(output.shape), output.dtype, [tuple(x.shape) for x in first.state_dict().values()])
"""


@pytest.mark.slow
def test_models_that_are_called_in_turn_are_all_rounded(tmp_path: Path) -> None:
    ran = run_with(f"import torch\n{SEVERAL_MODELS}", {"int8-weights": {}}, tmp_path)
    assert ran.stdout == "(4, 4) torch.float32 [(64, 32), (64,)]", ran.stderr
    assert ran.applied["int8-weights"]["state"] == "applied", ran.applied
    assert not ran.probe_errors
    assert "deprecated" not in ran.stderr


PARTS = """
torch.manual_seed(0)
parts = [torch.nn.Linear(size, size + 1) for size in range(4, 16)]
model = torch.nn.Sequential(*parts).eval()
with torch.no_grad():
    x = torch.rand(2, 4)
    for part in parts:
        x = part(x)
    for _ in range(4):
        model(torch.rand(2, 4))
"""


@pytest.mark.slow
def test_a_trial_sees_the_calls_that_the_untouched_program_makes(tmp_path: Path) -> None:
    """Copies of layers, left behind by rounding, were taken for models, and called made anew."""
    boundary = {"kind": "step", "learned_by": "forward"}  # none comes: it runs to its end
    called = []
    for fixes in ({}, {"int8-weights": {}}):
        folder = tmp_path / str(len(fixes))
        ran = run_with(f"import torch\n{PARTS}", fixes, folder, boundary=boundary)
        assert ran.returncode == 0, ran.stderr
        facts = json.loads(next((folder / "channel").glob("process-*.json")).read_text())
        called.append([(model["elements"], model["forwards"]) for model in facts["models"]])
    assert len(called[0]) > 1
    assert called[0] == called[1]


@pytest.mark.parametrize(("more", "refused"), [({}, False), ({"conv2d": 3}, True)])
def test_a_model_of_linear_layers_alone_needs_no_trace(more: dict[str, Any], refused: bool) -> None:
    """On a busy machine no time is left for the profiler, and it was refused."""
    seen = inferring(Path("gone.py")) | {"trace": None}
    seen["processes"][0]["models"][0] |= more
    assert bool(int8_weights.refuses(recording(seen))) == refused


def test_what_it_may_gain_counts_the_biases_that_products_copy() -> None:
    """A measured gain was doubted, for it exceeded what the products alone explain."""
    seen = inferring(Path("gone.py"))
    seen["steps"] |= {"mean_s": 0.01}
    seen["trace"]["operators"] += [{"name": "aten::copy_", "calls_per_step": 8, "self_s": 0.001}]
    [touched] = int8_weights.touches(recording(seen)) or []
    assert touched.seconds == pytest.approx(0.009)
