"""Which edits a recording allows around the model: only where it is sure what stands there."""

from __future__ import annotations

from dataclasses import replace

from made_tensors import tensor
from written_code import keywords

from torchdoctor.edits import (
    BeforeLoopEdit,
    DetachEdit,
    InputEdit,
    KeywordEdit,
    NonBlockingEdit,
    RemoveEdit,
    StatementEdit,
    WithEdit,
)
from torchdoctor.edits.calls import loader_call, loader_edits, loader_location, trainer_call
from torchdoctor.edits.training import around_forward, before_training, on_images
from torchdoctor.fixes import mixed_precision, pin_memory, remove_sync, tf32
from torchdoctor.schema import (
    Binding,
    Environment,
    LoaderFacts,
    Location,
    ModelFacts,
    ProcessFacts,
    Recording,
    TensorCall,
    TensorFacts,
    TrainingPass,
    Workload,
)

CONTEXT = "torch.autocast(device_type={device})"


def at(line: int, function: str = "main", file: str = "/w/train.py") -> Location:
    return Location(file=file, line=line, function=function)


BACKWARD = at(22)


def model(**changes) -> ModelFacts:
    values = {
        "ident": 0,
        "device": "cuda:0",
        "forwards": 9,
        "input_tensors": [[tensor(8, 3, 32, 32)]],
        "call": Binding(location=at(20), name="net"),
        "holder": Binding(location=at(30, "<module>"), name="model"),
        "holder_depth": 0,
    }
    return ModelFacts(**(values | changes))


def recording(*models: ModelFacts, passes: list[TrainingPass] | None = None) -> Recording:
    one = TrainingPass(model=0, name="net", forward=[at(20)], backward=[BACKWARD])
    process = ProcessFacts(pid=1, models=list(models), passes=[one] if passes is None else passes)
    workload = Workload(command=["python", "train.py"], cwd="/w")
    return Recording(workload=workload, environment=Environment(), processes=[process])


def test_the_context_is_of_the_models_device() -> None:
    assert around_forward(recording(model()), CONTEXT) == [
        WithEdit(
            file="/w/train.py",
            line=20,
            callee="net",
            before=22,
            context=CONTEXT,
            device="cuda",
        )
    ]


def context_of(forward: list[Location], backward: list[Location]) -> list[tuple[int, str, int]]:
    one = TrainingPass(model=0, name="net", forward=forward, backward=backward)
    edits = around_forward(recording(model(), passes=[one]), CONTEXT)
    return [(e.line, e.callee, e.before) for e in edits if isinstance(e, WithEdit)]


def test_forward_and_backward_meet_in_the_innermost_function_above_both() -> None:
    main = at(90, "<module>")
    assert context_of([at(20), main], [at(22), main]) == [(20, "net", 22)]
    # The loss is computed by a function, the backward pass by another.
    inside = [at(5, "loss_of"), at(20), main]
    assert context_of(inside, [at(22), main]) == [(20, "loss_of", 22)]
    assert context_of(inside, [at(9, "learn"), at(22), main]) == [(20, "loss_of", 22)]
    assert context_of([at(20, "<listcomp>"), at(20), main], [at(22), main]) == [(20, "net", 22)]


def test_no_context_where_they_do_not_meet() -> None:
    main = at(90, "<module>")
    assert context_of([at(20), main], [at(22, "step"), main]) == []
    assert context_of([at(20)], [at(22, file="/w/other.py")]) == []
    assert context_of([main], [main]) == [], "a library calls both"
    assert context_of([at(20)], []) == []
    assert around_forward(recording(model(), passes=[]), CONTEXT) == []


def test_each_pass_of_several_models_gets_its_context_or_none_does() -> None:
    other = replace(model(), ident=1)
    second = TrainingPass(model=1, name="g", forward=[at(30)], backward=[at(33)])
    again = TrainingPass(model=1, name="g", forward=[at(31)], backward=[at(33)])
    first = TrainingPass(model=0, name="net", forward=[at(20)], backward=[BACKWARD])
    seen = recording(model(), other, passes=[first, again, second])
    edits = around_forward(seen, CONTEXT)
    assert [(e.line, e.before) for e in edits if isinstance(e, WithEdit)] == [(20, 22), (30, 33)]
    hidden = replace(second, backward=[at(33, file="/w/other.py")])
    assert around_forward(recording(model(), other, passes=[first, hidden]), CONTEXT) == []


def test_every_model_gets_its_statement() -> None:
    held = Binding(location=at(30, "<module>"), name="other")
    seen = recording(model(), model(ident=1, holder=held))
    edits = before_training(seen, "{model}.compile()")
    assert [e.statement for e in edits if isinstance(e, BeforeLoopEdit)] == [
        "model.compile()",
        "other.compile()",
    ]
    assert (
        before_training(recording(model(), model(ident=1, holder=None)), "{model}.compile()") == []
    )


def test_a_statement_before_training_names_the_model_as_it_is_held() -> None:
    [edit] = before_training(recording(model()), "{model}.compile()")
    assert edit == BeforeLoopEdit(
        file="/w/train.py", line=30, statement="model.compile()", name="model", needs_loop=False,
        function="<module>",
    )  # fmt: skip
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
    images = [tensor(8, 3, 32, 32)]
    whole_numbers = [tensor(8, 3, 4, 4, dtype="int64")]
    no_tensor: list[TensorFacts] = []
    for calls in ([[tensor(8, 32)]], [images, [tensor(8, 3)]], [whole_numbers], [no_tensor], []):
        assert on_images(recording(model(input_tensors=calls)), method) == []


def test_noise_of_one_pixel_stays_as_it_is() -> None:
    generator = model(ident=1, input_tensors=[[tensor(8, 100, 1, 1)]])
    [edit] = on_images(recording(model(), generator), ".contiguous()")
    assert isinstance(edit, InputEdit) and edit.line == 20
    assert on_images(recording(generator), ".contiguous()") == []


def test_a_trainer_is_asked_in_its_own_words() -> None:
    def of(library: str | None) -> Recording:
        fit = at(90, "<module>")
        one = TrainingPass(model=0, name="net", forward=[fit], backward=[fit], library=library)
        return recording(model(), passes=[one])

    assert trainer_call(of(None), {"bfloat16": True}) is None
    assert trainer_call(of("some_engine"), {"bfloat16": True}) is None
    assert trainer_call(of("transformers_of_others"), {"num_workers": 4}) is None
    assert trainer_call(of("lightning.pytorch.trainer.trainer"), {"num_workers": 4}) is None
    said = trainer_call(of("transformers.trainer"), {"num_workers": 4, "persistent_workers": True})
    assert said is not None
    first, *others = said.splitlines()
    given = {"dataloader_num_workers": "4", "dataloader_persistent_workers": "True"}
    assert keywords(first, "TrainingArguments") == given
    options = others[0].removeprefix("# ").split()
    given_at = options.index("--dataloader_num_workers")
    assert options[given_at + 1] == "4" and "HfArgumentParser" in options
    for library, wanted, words in (
        ("lightning.pytorch.trainer.trainer", "bfloat16", 'Trainer(..., precision="bf16-mixed")'),
        ("lightning.fabric.fabric", "bfloat16", 'Fabric(..., precision="bf16-mixed")'),
        ("pytorch_lightning.trainer", "bfloat16", 'Trainer(..., precision="bf16-mixed")'),
        ("trl.trainer.sft_trainer", "bfloat16", "SFTConfig(..., bf16=True)"),
        ("skorch.classifier", "num_workers", "NeuralNet(..., iterator_train__num_workers=4)"),
        ("keras.src.trainers", "compile", "model.compile(..., jit_compile=True)"),
        ("keras", "bfloat16", 'keras.config.set_dtype_policy("mixed_bfloat16")'),
        ("deepspeed.runtime.engine", "bfloat16", '"bf16": {"enabled": true}'),
    ):
        assert (trainer_call(of(library), {wanted: 4}) or "").startswith(words)
    assert 'Trainer(..., precision="bf16-mixed")' in mixed_precision.instruction(
        {"dtype": "bfloat16"}, of("lightning.pytorch.trainer.trainer")
    )


def test_a_loader_that_a_library_made_anew_is_edited_where_it_was_written() -> None:
    def loader(ident: int, where: Location, length: int, batches: int = 0) -> LoaderFacts:
        return LoaderFacts(
            ident=ident, location=where, dataset_cls="D", dataset_length=length, batches=batches
        )

    prepared = replace(at(153), through="accelerate")
    written = [loader(0, at(99), 3668), loader(1, at(102), 408)]
    made_anew = [loader(2, prepared, 3668, batches=14), loader(3, prepared, 408)]
    process = ProcessFacts(pid=1, loaders=[*written, *made_anew])
    seen = replace(recording(), processes=[process])
    assert loader_location(seen) == at(99)
    [edit] = loader_edits(seen, num_workers=4)
    assert isinstance(edit, KeywordEdit) and edit.line == 99
    assert loader_call(seen, num_workers=4) == "train.py:99  DataLoader(..., num_workers=4)"
    both_here = replace(seen, processes=[replace(process, loaders=made_anew)])
    assert loader_location(both_here) == prepared


def test_pinning_goes_with_copies_that_do_not_block() -> None:
    """One without the other gains nothing."""
    loader = LoaderFacts(ident=0, location=at(9), batches=9)
    seen = recording(model())
    seen = replace(seen, processes=[replace(seen.main, loaders=[loader])])
    pinned, copied = pin_memory.edits({}, seen)
    assert isinstance(pinned, KeywordEdit) and (pinned.keyword, pinned.value) == (
        "pin_memory",
        "True",
    )
    assert copied == NonBlockingEdit(file="/w/train.py", line=20)
    assert pin_memory.edits({}, replace(seen, processes=[replace(seen.main, passes=[])])) == []


def test_waits_that_nobody_needs_are_removed_and_nothing_else() -> None:
    calls = [
        TensorCall(kind="wait", name="synchronize", location=at(30), host_s=1.0),
        TensorCall(
            kind="wait", name="item", location=at(31), text="t += l.item()", sure=True, host_s=1.0
        ),
    ]
    seen = recording(model())
    seen = replace(seen, processes=[replace(seen.main, tensor_calls=calls, analysed_steps=3)])
    assert remove_sync.edits({"calls": ["synchronize"]}, seen) == [
        RemoveEdit(file="/w/train.py", line=30, callee="synchronize")
    ]
    assert remove_sync.edits({}, seen) == [
        DetachEdit(file="/w/train.py", line=31, name="t", from_item=True)
    ]


def test_tf32_that_was_forbidden_to_convolutions_is_allowed_there_too() -> None:
    """That is what its trial measured."""
    seen = recording(model())
    seen = replace(seen, workload=replace(seen.workload, script="/w/train.py"))
    forbidden = replace(seen.main, flags=replace(seen.main.flags, cudnn_tf32=False))
    high = StatementEdit(file="/w/train.py", statement='torch.set_float32_matmul_precision("high")')
    assert tf32.edits({}, seen) == [high]
    allowed = "torch.backends.cudnn.allow_tf32 = True"
    convolutions = StatementEdit(file="/w/train.py", statement=allowed)
    assert tf32.edits({}, replace(seen, processes=[forbidden])) == [high, convolutions]
