"""Which edits a recording allows around the model: only where it is sure what stands there."""

from __future__ import annotations

from dataclasses import replace

from torchdoctor.edits import BeforeLoopEdit, InputEdit, WithEdit
from torchdoctor.edits.training import around_forward, before_training, on_images
from torchdoctor.records import (
    Binding,
    Environment,
    Flags,
    Location,
    ModelFacts,
    OptimizerFacts,
    ProcessFacts,
    Recording,
    Workload,
)

CONTEXT = 'torch.autocast(device_type="{device}")'


def at(line: int, function: str = "main", file: str = "/w/train.py") -> Location:
    return Location(file=file, line=line, function=function)


BACKWARD = at(22)


def model(**changes) -> ModelFacts:
    values = {
        "ident": 0,
        "device": "cuda:0",
        "forwards": 9,
        "input_shapes": ["8x3x32x32 float32"],
        "call": Binding(location=at(20), name="net"),
        "holder": Binding(location=at(30, "<module>"), name="model"),
        "holder_depth": 0,
    }
    return ModelFacts(**(values | changes))


def recording(*models: ModelFacts, optimizers: int = 1, backward: Location | None = BACKWARD):
    process = ProcessFacts(
        pid=1,
        models=list(models),
        optimizers=[OptimizerFacts(ident=number) for number in range(optimizers)],
        flags=Flags(backward_location=backward),
    )
    workload = Workload(command=["python", "train.py"], cwd="/w")
    return Recording(workload=workload, environment=Environment(), processes=[process])


def test_the_context_is_of_the_models_device() -> None:
    assert around_forward(recording(model()), CONTEXT) == [
        WithEdit(
            file="/w/train.py",
            line=20,
            callee="net",
            before=22,
            context='torch.autocast(device_type="cuda")',
        )
    ]


def test_forward_and_backward_must_be_in_one_function() -> None:
    for backward in (None, at(22, "step"), at(22, file="/w/other.py")):
        assert around_forward(recording(model(), backward=backward), CONTEXT) == []


def test_one_model_and_one_optimizer_alone() -> None:
    called, uncalled = model(), replace(model(), ident=1, call=None)
    assert around_forward(recording(called, uncalled), CONTEXT)
    assert around_forward(recording(called, replace(called, ident=1)), CONTEXT) == []
    assert around_forward(recording(called, optimizers=2), CONTEXT) == []


def test_a_statement_before_training_names_the_model_as_it_is_held() -> None:
    [edit] = before_training(recording(model()), "{model}.compile()")
    assert edit == BeforeLoopEdit(
        file="/w/train.py", line=30, statement="model.compile()", name="model", needs_loop=False
    )
    [edit] = before_training(recording(model(holder_depth=2)), "{model}.compile()")
    assert isinstance(edit, BeforeLoopEdit) and edit.needs_loop


def test_an_attribute_is_not_bound_anew() -> None:
    """Somebody else may hold what it was bound to before."""
    held = model(holder=Binding(location=at(30), name="self.net"))
    assert before_training(recording(held), "{model} = torch.compile({model})") == []
    assert before_training(recording(held), "{model}.compile()") != []


def test_only_images_are_converted() -> None:
    method = ".to(memory_format=torch.channels_last)"
    assert on_images(recording(model()), method) == [
        InputEdit(file="/w/train.py", line=20, callee="net", method=method)
    ]
    for shapes in (["8x32 float32"], ["8x3x32x32 float32", "8x3 float32"], ["8x3x4x4 int64"], []):
        assert on_images(recording(model(input_shapes=shapes)), method) == []
