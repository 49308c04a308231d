"""What each fix decides from a recording: refused with which reason, tried with which values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import partial_recordings
import pytest
from made_tensors import tensor
from written_code import keywords, statements

from torchdoctor.advice import catalogue
from torchdoctor.advice.candidates import candidates
from torchdoctor.fixes._parts import asked_once
from torchdoctor.reports import trial_facts
from torchdoctor.schema import (
    Binding,
    Boundary,
    DatasetWrite,
    Diagnosis,
    DoubleCall,
    Environment,
    Finding,
    FixSet,
    Flags,
    Gpu,
    LoaderFacts,
    Location,
    ModelFacts,
    Operator,
    OptimizerFacts,
    ProcessFacts,
    Recording,
    SampleCheck,
    SensorStatistics,
    StepStatistics,
    TraceStatistics,
    Workload,
    fact,
)
from torchdoctor.schema.traced import MatrixWork
from torchdoctor.trials.arm_specs import ArmSpecs
from torchdoctor.trials.arms import fix_facts

FIXES = catalogue.fixes()
HERE = Location(file="/home/me/work/train.py", line=42)
AMPERE = Gpu(index=0, name="NVIDIA A100", compute_capability="8.0")
PASCAL = Gpu(index=0, name="Tesla P100", compute_capability="6.0")
VOLTA = Gpu(index=0, name="Tesla V100", compute_capability="7.0")


def steps(wait: float = 0.5, **changes: Any) -> StepStatistics:
    values: dict[str, Any] = {
        "boundary": Boundary(kind="loader"),
        "steps": 50,
        "warmup_steps": 10,
        "median_s": 1.0,
        "mean_s": 1.0,
        "p10_s": 1.0,
        "p90_s": 1.0,
        "data_wait_s": wait,
    }
    return StepStatistics(**(values | changes))


def recording(
    cpus: float = 2,
    loader: dict[str, Any] | None = None,
    others: int = 0,
    model: dict[str, Any] | None = None,
    optimizer: dict[str, Any] | None = None,
    flags: dict[str, Any] | None = None,
    gpu: Gpu | None = None,
    features: tuple[str, ...] = ("avx512f",),
    sensors: dict[str, Any] | None = None,
    **step: Any,
) -> Recording:
    device = "cuda:0" if gpu else "cpu"
    loaders = []
    if loader is not None:
        known = {"batch_size": 32, "dataset_length": 5000, "location": HERE, "batches": 60}
        loaders = [LoaderFacts(**({"ident": 0, "iterators": 1} | known | loader))]
        loaders += [LoaderFacts(ident=i + 1, batches=3) for i in range(others)]
    models = {"ident": 0, "cls": "__main__.Net", "dtypes": ["float32"], "forwards": 60}
    optimizers = {"ident": 0, "cls": "torch.optim.adam.Adam", "steps": 60, "location": HERE}
    process = ProcessFacts(
        pid=1,
        loaders=loaders,
        models=[] if model is None else [ModelFacts(**(models | {"device": device} | model))],
        optimizers=[]
        if optimizer is None
        else [OptimizerFacts(**(optimizers | {"device": device} | optimizer))],
        flags=Flags(**(flags or {})),
    )
    return Recording(
        workload=Workload(
            command=["train.py"], cwd="/home/me/work", script="/home/me/work/train.py"
        ),
        environment=Environment(
            usable_cpus=cpus,
            cpu_cores=int(cpus),
            cpu_features=list(features),
            gpus=[gpu] if gpu else [],
        ),
        steps=steps(**step),
        processes=[process],
        sensors=SensorStatistics(**(sensors or {})),
    )


def refused(ident: str, seen: Recording) -> str:
    """Return the fact that a fix refuses a program with."""
    why = FIXES[ident].refuses(seen)
    assert why is not None
    sentence = trial_facts.refusal(why, ident)
    assert sentence.endswith(".") and "\n" not in sentence
    return why.fact


def tried(ident: str, seen: Recording) -> list[dict[str, Any]]:
    assert FIXES[ident].refuses(seen) is None
    values = FIXES[ident].settings(seen)
    assert 1 <= len(values) <= 4
    for one in values:
        assert FIXES[ident].instruction(one, seen)
    return values


def numbers(seen: Recording) -> list[int]:
    return [one["num_workers"] for one in tried("loader-workers", seen)]


@pytest.mark.parametrize("ident", FIXES)
def test_a_machine_alone_can_be_asked(ident: str) -> None:
    bare = Recording(workload=Workload(command=[], cwd=""), environment=Environment())
    why = FIXES[ident].refuses(bare)
    assert why is None or trial_facts.refusal(why, ident).endswith(".")


def test_workers_for_a_loader_that_computes_stay_near_the_cores() -> None:
    seen = recording(cpus=2, loader={"sample_cpu_share": 0.98})
    assert sorted(numbers(seen)) == [1, 2, 4]


def test_workers_for_a_loader_that_waits_go_beyond_the_cores() -> None:
    seen = recording(cpus=2, loader={"sample_cpu_share": 0.05}, wait=0.8)
    assert sorted(numbers(seen)) == [2, 4, 8, 16]
    assert numbers(seen)[0] == 4  # 0.8 s of loading to 0.2 s of computing
    more = recording(cpus=2, loader={"sample_cpu_share": 0.05}, wait=0.84)
    assert numbers(more)[0] == 8, "five would do: four would be waited for"


@pytest.mark.parametrize(
    "sensors", [{"iowait_share": 0.4}, {"workers_cpus": 0.3}], ids=["iowait", "idle workers"]
)
def test_workers_that_wait_get_company(sensors: dict[str, Any]) -> None:
    seen = recording(cpus=2, loader={"num_workers": 2}, sensors=sensors)
    assert sorted(numbers(seen)) == [4, 8, 16]


def test_workers_on_a_large_machine_begin_with_just_enough() -> None:
    seen = recording(cpus=16, loader={"sample_cpu_share": 1.0}, wait=0.9)
    assert numbers(seen)[0] == 8  # 9 would do, and 8 is the nearest that is tried
    assert set(numbers(seen)) <= {1, 2, 4, 8, 16, 32}


def test_a_fraction_of_a_cpu_still_gets_a_worker() -> None:
    assert 1 in numbers(recording(cpus=0.5, loader={"sample_cpu_share": 1.0}))


def test_workers_name_the_loader_where_there_are_others() -> None:
    assert "loader" not in tried("loader-workers", recording(loader={}))[0]
    assert tried("loader-workers", recording(loader={}, others=1))[0]["loader"] == 0


def test_a_loader_made_anew_each_epoch_is_not_named() -> None:
    seen = recording(loader={}, others=1)
    again = replace(seen.main.loaders[0], ident=2)
    process = replace(seen.main, loaders=[*seen.main.loaders, again])
    seen = replace(seen, processes=[process])
    assert "loader" not in tried("loader-workers", seen)[0]
    assert refused("persistent-workers", seen) == "made-anew-each-epoch"


def _made(*before: int) -> Recording:
    """Loaders of one line, each made when so many iterators had been started."""
    seen = recording(loader={"iterators": 5})
    made = [
        replace(seen.main.loaders[0], ident=i, iterators_before=n) for i, n in enumerate(before)
    ]
    return replace(seen, processes=[replace(seen.main, loaders=made)])


def test_loaders_made_side_by_side_are_not_made_anew() -> None:
    (value,) = tried("persistent-workers", _made(0, 0, 0))
    assert "loader" not in value  # the line makes all of them
    assert refused("persistent-workers", _made(0, 1)) == "made-anew-each-epoch"


def test_workers_that_keep_up_are_made_fewer() -> None:
    """Of four workers that had nothing to do, eight and sixteen were tried, and never none."""
    ready = {"num_workers": 4, "taken_over_s": 0.9, "awaited_s": 0.1, "looks": 20}
    assert numbers(recording(loader=ready)) == [1, 2, 0]  # what none would cost is not known
    assert numbers(recording(loader={**ready, "num_workers": 1})) == [0]
    assert refused("prefetch-factor", recording(loader=ready)) == "batches-lie-ready"
    cheap, dear = {"workers_cpus": 0.05}, {"workers_cpus": 0.8}
    assert numbers(recording(loader=ready, sensors=cheap)) == [0, 1, 2]
    # Making a batch takes longer than its step waits: 0.21x was what the budget went into.
    assert numbers(recording(loader=ready, sensors=dear)) == [2]
    sleeps = recording(loader={**ready, "num_workers": 6}, sensors=cheap)
    check = SampleCheck(loader=0, samples=8, same=True, sample_s=0.05)
    sleeps = replace(sleeps, processes=[replace(sleeps.main, sample_check=check)])
    assert numbers(sleeps) == [4]  # 1.6 s of them, for a step that computes for half a second
    slow = {**ready, "taken_over_s": 0.1, "awaited_s": 0.9}
    assert 0 not in numbers(recording(loader=slow))
    assert FIXES["prefetch-factor"].refuses(recording(loader=slow)) is None


def test_workers_are_refused_where_they_cannot_gain_or_repeat_data() -> None:
    assert refused("loader-workers", recording()) == "no-loader"
    assert refused("loader-workers", recording(loader={}, wait=0.005)) == "hardly-waits"
    unsharded = {"iterable": True, "shards_by_worker": False, "dataset_cls": "data.Stream"}
    one = {"num_workers": 1, "shards_by_worker": None}
    repeated = recording(loader={**unsharded, "num_workers": 1})
    assert refused("loader-workers", repeated) == "does-not-shard"
    assert refused("loader-workers", recording(loader=unsharded | one)) == "not-seen-to-shard"
    sharded = {"iterable": True, "shards_by_worker": True}
    assert tried("loader-workers", recording(loader=sharded))[0]["loader"] == 0


@pytest.mark.parametrize("shards", [False, None])
def test_one_worker_repeats_nothing_of_an_iterable_dataset(shards: bool | None) -> None:
    """It overlaps preparing with computing; the instruction says how to take more."""
    unsharded = {"iterable": True, "shards_by_worker": shards, "dataset_cls": "data.Stream"}
    seen = recording(loader=unsharded | {"sample_cpu_share": 0.02})
    [value] = tried("loader-workers", seen)
    assert value == {"num_workers": 1, "loader": 0}
    said = FIXES["loader-workers"].instruction(value, seen)
    assert "get_worker_info()" in said
    assert "islice(" in said
    ladder = FIXES["loader-workers"].ladder(seen)
    assert (ladder["least"], ladder["most"]) == (1, 1)


def test_loader_settings_are_switched_where_a_second_loader_can_be_had() -> None:
    def switched(ident: str = "loader-workers", **seen: Any) -> bool:
        return switches(ident, recording(**{"loader": {}, **seen}))

    def switches(ident: str, program: Recording) -> bool:
        return ArmSpecs(FIXES, program).of(FixSet.of(ident)).switching is not None

    assert switched() and switched("prefetch-factor", loader={"num_workers": 2})
    assert not switched("persistent-workers"), "it gains where an epoch begins"
    none_beside = {"no_second": {"fact": "own-way-of-batches"}}
    assert not switched(loader=none_beside), "no second one is made"
    assert not switched(loader=None)
    # 60 batches in 12 epochs, of 1 s or 2 s each.
    assert switched(loader={"iterators": 12}, mean_s=2.0)
    assert not switched(loader={"iterators": 15}), "workers start again too often to be left out"
    assert not switches("loader-workers", _made(0, 1, 2)), "a loader made anew each epoch"


@pytest.mark.parametrize("ident", ["loader-workers", "persistent-workers", "decoded-cache"])
def test_a_wait_as_short_as_handing_a_batch_over_starts_no_worker(ident: str) -> None:
    """Of a fifth of steps of 2 ms: workers took 2.2x as long, and a cache 1.4x."""
    loader = {"iterators": 9, "dataset_length": 640, "samples": 5760}
    longer = recording(loader=loader, mean_s=0.01, data_wait_s=0.002)
    assert FIXES[ident].refuses(longer) is None
    shorter = recording(loader=loader, mean_s=0.002, data_wait_s=0.0004)
    assert refused(ident, shorter) == "wait-is-a-handover"


def test_compiling_a_few_operators_is_expected_to_be_cheaper_than_thousands() -> None:
    """A minute has time for the one, and 40 s for all kept it from being tried."""

    def setup_s(calls: float | None, sizes: int = 0) -> float:
        counted = TraceStatistics(path="t", steps=4, operator_calls_per_step=calls)
        seen = recording(model={"forwards": 9, "eval_forwards": 3, "eval_sizes": sizes})
        program = replace(seen, trace=None if calls is None else counted)
        return ArmSpecs(FIXES, program).of(FixSet.of("torch-compile", {"mode": "default"})).setup_s

    assert setup_s(100.0) < 20.0 < setup_s(None) < setup_s(5000.0)
    # A program that generates text of growing length was compiled four times, in 55 s of 60.
    assert setup_s(None) < setup_s(None, sizes=1) < 50.0 < setup_s(None, sizes=3)


def test_timing_kernels_is_priced_by_the_products_of_the_program() -> None:
    """A minute for all kept it from a program of two products, and is too little for forty."""

    def setup_s(kinds: int, mode: str) -> float:
        work = MatrixWork(flops=1e9, device_s=0.01, known_share=1.0, kinds=kinds)
        trace = TraceStatistics(path="t", steps=4, operator_calls_per_step=500, matrix_work=work)
        program = replace(recording(model={}, gpu=AMPERE), trace=trace)
        return ArmSpecs(FIXES, program).of(FixSet.of("torch-compile", {"mode": mode})).setup_s

    tuned, plain = "max-autotune-no-cudagraphs", setup_s(40, "default")
    assert plain == setup_s(2, "default") < setup_s(2, tuned) < plain + 60.0
    assert setup_s(40, tuned) > plain + 150.0


def test_persistent_workers_need_several_epochs() -> None:
    assert refused("persistent-workers", recording(loader={"num_workers": 2})) == "iterated-once"
    seen = recording(loader={"num_workers": 2, "iterators": 5})
    assert tried("persistent-workers", seen) == [{}]
    already = {"num_workers": 2, "iterators": 5, "persistent_workers": True}
    assert refused("persistent-workers", recording(loader=already)) == "persistent-already"


def test_persistent_workers_come_with_workers_where_there_are_none() -> None:
    seen = recording(loader={"iterators": 5, "sample_cpu_share": 1.0})
    (value,) = tried("persistent-workers", seen)
    assert value["num_workers"] == numbers(seen)[0]
    assert "num_workers=" in FIXES["persistent-workers"].instruction(value, seen)


def test_prefetching_needs_workers_and_tries_longer_queues() -> None:
    assert refused("prefetch-factor", recording(loader={})) == "no-workers"
    seen = recording(loader={"num_workers": 2})
    assert tried("prefetch-factor", seen) == [{"prefetch_factor": 4}, {"prefetch_factor": 8}]
    longer = recording(loader={"num_workers": 2, "prefetch_factor": 4})
    assert tried("prefetch-factor", longer) == [{"prefetch_factor": 8}]
    longest = recording(loader={"num_workers": 2, "prefetch_factor": 16})
    assert refused("prefetch-factor", longest) == "ahead-already"


@pytest.mark.parametrize("ident", ["pin-memory", "tf32", "cudnn-benchmark"])
def test_gpu_fixes_are_refused_without_one(ident: str) -> None:
    seen = recording(loader={}, model={"conv2d": 3})
    assert refused(ident, seen) in ("no-gpu", "no-cuda-gpu", "model-on-gpu")


def test_pinning_is_refused_where_all_is_pinned() -> None:
    assert tried("pin-memory", recording(loader={}, model={}, gpu=AMPERE)) == [{}]
    copies = {"pageable_copies_per_step": 0.0, "blocking_copies_per_step": 0.0}
    seen = recording(loader={"pin_memory": True}, model={}, gpu=AMPERE, **copies)
    assert refused("pin-memory", seen) == "pinned-already"
    copies["blocking_copies_per_step"] = 2.0
    seen = recording(loader={"pin_memory": True}, model={}, gpu=AMPERE, **copies)
    assert tried("pin-memory", seen) == [{}]


@pytest.mark.parametrize("ident", ["pin-memory", "loader-workers"])
def test_batches_that_lie_on_the_gpu_need_no_hand_over(ident: str) -> None:
    """Both were tried, though pinning such a batch and handing it over fail."""
    on_gpu = {"batch_tensors": [[tensor(8, 3), tensor(8, dtype="int64", device="cuda:0")]]}
    assert refused(ident, recording(loader=on_gpu, model={}, gpu=AMPERE)) == "batches-on-gpu"


def test_bf16_needs_hardware_for_it() -> None:
    assert refused("mixed-precision", recording(model={})) == "no-bfloat16-instructions"
    assert tried("mixed-precision", recording(model={}, features=("amx_bf16",)))
    assert tried("mixed-precision", recording(model={}, gpu=AMPERE))
    step = {"steps": 60}
    assert tried("mixed-precision", recording(model={}, optimizer=step, gpu=VOLTA)) == [
        {"dtype": "float16"}
    ]
    old = recording(model={}, optimizer=step, gpu=PASCAL)
    assert refused("mixed-precision", old) == "no-tensor-cores"
    assert tried("mixed-precision", recording(model={}, features=()))  # not known: try


def test_bf16_is_refused_where_precision_is_low_already() -> None:
    def bf16(**model: Any) -> Recording:
        return recording(model=model, gpu=AMPERE)

    assert refused("mixed-precision", bf16(autocast_forwards=60)) == "autocast-already"
    assert refused("mixed-precision", bf16(dtypes=["float16"])) == "in-16-bits-already"
    assert refused("mixed-precision", bf16(dtypes=["float64"])) == "in-float64"


DOUBLE = {"dtypes": ["float64"], "elements": 9, "float64_elements": 9}


def in_double(
    calls: list[DoubleCall], model: dict[str, Any] | None = None, **more: Any
) -> Recording:
    seen = recording(model={**DOUBLE, **(model or {})}, **more)
    return replace(seen, processes=[replace(seen.main, double_calls=calls)])


def test_float32_is_edited_where_every_line_is_known(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("for x, y in loader:\n    model(x)\n")
    here = Location(file=str(file), line=2)
    made = DoubleCall(kind="model", name="double", location=HERE, sure=True)
    data = DoubleCall(kind="data", name="from_numpy", location=HERE, sure=True)
    unsure = replace(data, sure=False)
    known = {"call": Binding(location=here, name="model")}
    target = tensor(8, 1, dtype="float64")
    batches: dict[str, Any] = {
        "batch_tensors": [[tensor(8, 3, dtype="float64"), target]],
        "dataset_cls": "__main__.Table",
    }

    def names(calls: list[DoubleCall], **changes: Any) -> list[str]:
        seen = in_double(calls, known, loader={**batches, **changes})
        return [type(one).__name__ for one in FIXES["single-precision"].edits({}, seen)]

    line, loop = "SinglePrecisionEdit", "BatchCastEdit"
    assert names([made]) == [line, loop]
    assert names([made, data]) == [line, line, loop]
    held = "torch.utils.data.dataset.TensorDataset"
    assert names([made, data], dataset_cls=held) == [line, line]  # the tensors are float32 then
    assert names([made], dataset_cls=held) == [line, loop]
    single = [tensor(8, 3), tensor(8, 1)]
    three = [tensor(8, 3, dtype="float64"), tensor(8, dtype="int64"), target]
    assert names([made], batch_tensors=[single]) == [line]
    assert names([made], batch_tensors=[three]) == []
    assert names([data]) == []  # what made the model so is not known
    assert names([made, unsure]) == []
    file.write_text("for batch in loader:\n    model(*batch)\n")
    assert names([made]) == []


def test_tf32_needs_ampere_and_float32() -> None:
    assert tried("tf32", recording(model={}, gpu=AMPERE)) == [{}]
    assert refused("tf32", recording(model={}, gpu=VOLTA)) == "no-tensor-cores"
    on = {"matmul_tf32": True, "cudnn_tf32": True}
    assert refused("tf32", recording(model={}, gpu=AMPERE, flags=on)) == "allowed-already"
    low = {"dtypes": ["bfloat16"]}
    assert refused("tf32", recording(model=low, gpu=AMPERE)) == "no-float32-parameters"


def test_cudnn_is_not_tuned_for_shapes_that_vary() -> None:
    assert tried("cudnn-benchmark", recording(model={"conv2d": 3}, gpu=AMPERE)) == [{}]
    assert refused("cudnn-benchmark", recording(model={}, gpu=AMPERE)) == "no-convolutions"
    varying = {"conv2d": 3, "input_tensors": [[tensor(2, 3, n, n)] for n in (8, 9, 10)]}
    assert refused("cudnn-benchmark", recording(model=varying, gpu=AMPERE)) == "shapes-vary"
    on = recording(model={"conv2d": 3}, gpu=AMPERE, flags={"cudnn_benchmark": True})
    assert refused("cudnn-benchmark", on) == "auto-tuner-on"
    strict = recording(model={"conv2d": 3}, gpu=AMPERE, flags={"deterministic": True})
    assert refused("cudnn-benchmark", strict) == "deterministic-algorithms"


def test_float16_is_refused_where_gradients_cannot_be_unscaled() -> None:
    def float16(**more: Any) -> Recording:
        return recording(**({"model": {}, "optimizer": {}, "gpu": VOLTA} | more))

    scaled = float16(flags={"grad_scaler": True})
    assert refused("mixed-precision", scaled) == "scales-gradients-itself"
    assert refused("mixed-precision", float16(optimizer=None)) == "no-step-to-leave-out"
    assert (
        refused("mixed-precision", float16(optimizer={"inside_backwards": 9}))
        == "step-with-closure"
    )
    sharded = float16(model={"data_parallel": "FSDP"})
    assert refused("mixed-precision", sharded) == "gradients-sharded"
    # On a CPU, or with bfloat16, nothing is scaled and so nothing of it matters.
    assert tried("mixed-precision", recording(model={}, gpu=AMPERE)) == [{"dtype": "bfloat16"}]
    instruction = FIXES["mixed-precision"].instruction
    text = instruction({"dtype": "float16"}, float16(flags={"clip_calls": 60}))
    assert text.index("scaler.unscale_(optimizer)") < text.index("scaler.step(optimizer)")
    assert "unscale_" not in instruction({"dtype": "float16"}, float16())


def test_channels_last_is_for_convolutions_outside_ddp() -> None:
    assert tried("channels-last", recording(model={"conv2d": 3})) == [{}]
    together, fast = FIXES["channels-last"].together, ("avx512_bf16",)
    assert together({}, recording(model={"conv2d": 3}, features=fast)) == {
        "mixed-precision": {"dtype": "bfloat16"}
    }
    assert together({}, recording(model={"conv2d": 3})) == {}, "no bfloat16 instructions"
    already = recording(model={"conv2d": 3, "forwards": 5, "autocast_forwards": 5}, features=fast)
    assert together({}, already) == {}
    assert refused("channels-last", recording(model={})) == "no-2d-convolutions"
    done = {"conv2d": 3, "conv_channels_last": True}
    assert refused("channels-last", recording(model=done)) == "channels-last-already"
    wrapped = {"conv2d": 3, "data_parallel": "DistributedDataParallel"}
    assert refused("channels-last", recording(model=wrapped)) == "wrapped"


def test_compiling_tries_cuda_graphs_on_a_gpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/" + name)
    assert tried("torch-compile", recording(model={})) == [{"mode": "default"}]
    modes = [one["mode"] for one in tried("torch-compile", recording(model={}, gpu=AMPERE))]
    assert modes == ["default", "reduce-overhead"]
    sizes = {"input_tensors": [[tensor(n, 8)] for n in (4, 5, 6)]}
    assert tried("torch-compile", recording(model=sizes, gpu=AMPERE)) == [
        {"mode": "default"},
        {"mode": "default", "dynamic": True},
    ]
    layers = {"repeated_blocks": 12, "repeated_block": "Block"}
    assert tried("torch-compile", recording(model=layers))[1] == {
        "mode": "default",
        "blocks": "Block",
    }
    assert refused("torch-compile", recording(model={"compiled": True})) == "compiled"
    assert refused("torch-compile", recording(model={"recurrent": 2, "linear": 1})) == "recurrent"
    wrapped = {"data_parallel": "DataParallel"}
    assert refused("torch-compile", recording(model=wrapped)) == "data-parallel"


def test_compiling_on_a_cpu_needs_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.delenv("CXX", raising=False)
    assert refused("torch-compile", recording(model={})) == "no-cpp-compiler"
    assert tried("torch-compile", recording(model={}, gpu=AMPERE))


def test_compiling_a_plain_sequential_needs_another_call() -> None:
    net, sequential = {"cls": "__main__.Net"}, {"cls": "torch.nn.modules.container.Sequential"}
    instruction = FIXES["torch-compile"].instruction
    assert instruction({"mode": "default"}, recording(model=net)).startswith("model.compile()")
    text = instruction({"mode": "reduce-overhead"}, recording(model=sequential))
    [compiled] = statements(text.splitlines()[0])
    assert compiled.startswith("model.forward = torch.compile(model.forward,")
    assert keywords(compiled, "compile") == {"mode": "'reduce-overhead'"}


def test_the_optimizer_is_fused_where_its_class_can_be() -> None:
    adam = {"supports_fused": True}
    seen = recording(optimizer=adam)
    assert tried("fused-optimizer", seen) == [{"fused": True}]
    assert FIXES["fused-optimizer"].instruction({"fused": True}, seen) == (
        "train.py:42  Adam(..., fused=True)"
    )
    fused = recording(optimizer=adam | {"fused": True})
    assert refused("fused-optimizer", fused) == "fused-already"
    rms = {"cls": "torch.optim.rmsprop.RMSprop"}
    assert tried("fused-optimizer", recording(optimizer=rms)) == [{"foreach": True}]
    assert refused("fused-optimizer", recording(optimizer=rms, gpu=AMPERE)) == "together-already"
    lbfgs = {"cls": "torch.optim.lbfgs.LBFGS"}
    assert refused("fused-optimizer", recording(optimizer=lbfgs)) == "neither-fused-nor-foreach"
    assert refused("fused-optimizer", recording()) == "no-optimizer"


def touched_s(ident: str, seen: Recording) -> float:
    """Return the seconds of a step that a fix works on."""
    return sum(part.seconds for part in FIXES[ident].touches(seen) or [])


def test_another_implementation_gains_nothing_of_other_optimizers_time() -> None:
    seen = recording(optimizer={"supports_fused": True}, optimizer_s=0.5, update_s=[0.02, 0.4])
    adam = seen.main.optimizers[0]
    lbfgs = replace(adam, ident=1, cls="torch.optim.lbfgs.LBFGS", supports_fused=False)
    mixed = replace(seen, processes=[replace(seen.main, optimizers=[adam, lbfgs])])
    assert touched_s("fused-optimizer", mixed) == pytest.approx(0.02)
    found, _ = candidates(
        mixed,
        Diagnosis(
            bottleneck="cpu",
            detail="optimizer-share",
            findings=[Finding(check="optimizer-share", share_of_step=0.5)],
        ),
        {"fused-optimizer": FIXES["fused-optimizer"]},
    )
    assert found[0].ceiling == found[0].bound == pytest.approx(1 / 0.98)


def test_set_to_none_names_the_line() -> None:
    assert refused("set-to-none", recording()) == "set-to-none-already"
    seen = recording(flags={"zero_grad_to_zero": 60, "zero_grad_location": HERE})
    assert tried("set-to-none", seen) == [{}]
    assert FIXES["set-to-none"].instruction({}, seen).startswith("train.py:42")
    assert FIXES["set-to-none"].location(seen) == HERE


def test_evaluation_is_told_from_training_in_evaluation_mode() -> None:
    ident = "no-grad-evaluation"
    # A launch of a minute may end long before the first evaluation: that is not "none seen".
    unseen = recording(model={})
    assert refused(ident, unseen) == "no-evaluation-reached"
    assert unseen.steps is not None
    ended = replace(unseen, steps=replace(unseen.steps, program_ended=True))
    assert refused(ident, ended) == "no-evaluation-made"
    without = recording(model={"eval_forwards": 9})
    assert refused(ident, without) == "no-evaluation-with-gradients"
    seen = {"eval_forwards": 10, "eval_forwards_with_grad": 10, "eval_with_grad_location": HERE}
    assert tried(ident, recording(model=seen)) == [{}]
    frozen = recording(model=seen | {"forwards": 10})
    assert refused(ident, frozen) == "trains-in-evaluation-mode"


def test_debugging_aids_are_named_one_by_one() -> None:
    assert refused("debug-off", recording()) == "nothing-left-on"
    flags = {
        "anomaly_enabled": True,
        "gradcheck_calls": 1,
        "profiler_on": True,
        "environment": {"CUDA_LAUNCH_BLOCKING": "1", "TORCH_DISTRIBUTED_DEBUG": "DETAIL"},
    }
    (value,) = tried("debug-off", recording(flags=flags, model={}, gpu=AMPERE))
    assert value["off"] == ["anomaly", "gradcheck", "profiler", *flags["environment"]]
    (value,) = tried("debug-off", recording(flags=flags, model={}))
    assert "CUDA_LAUNCH_BLOCKING" not in value["off"]
    harmless = {"environment": {"CUDA_LAUNCH_BLOCKING": "0", "TORCH_DISTRIBUTED_DEBUG": "OFF"}}
    refused("debug-off", recording(flags=harmless, model={}, gpu=AMPERE))


def test_threads_are_tried_from_the_cores_down() -> None:
    def threads(seen: Recording) -> list[int]:
        return [one["num_threads"] for one in tried("cpu-threads", seen)]

    assert threads(recording(cpus=8, flags={"num_threads": 32})) == [8, 4, 1]
    assert threads(recording(cpus=8, flags={"num_threads": 8})) == [4, 1]
    busy = recording(cpus=8, loader={"num_workers": 2}, flags={"num_threads": 8})
    assert threads(busy) == [6, 4, 1]
    loaded = recording(cpus=8, flags={"num_threads": 8}, sensors={"other_load_cpus": 3.1})
    assert threads(loaded)[0] == 5  # the other three are busy
    one = recording(cpus=1, flags={"num_threads": 1})
    assert refused("cpu-threads", one) == "one-cpu"
    assert refused("cpu-threads", recording(model={}, gpu=AMPERE)) == "model-on-gpu"


@pytest.mark.parametrize("ident", ["mixed-precision", "cpu-bfloat16-products"])
def test_fewer_bits_make_matrix_products_shorter_and_nothing_else(ident: str) -> None:
    """Of 1,800 tiny operators each was thought to gain 4x, and took the time of compiling."""
    rows = [
        Operator(name="aten::mul", calls_per_step=1800, self_s=0.07),
        Operator(name="aten::addmm", calls_per_step=2, self_s=0.01),
    ]
    seen = recording(mean_s=0.1, forward_s=0.05, backward_s=0.04)
    seen = replace(seen, trace=TraceStatistics(path="t", steps=4, step_s=0.1, operators=rows))
    seen = replace(seen, environment=replace(seen.environment, cpu_features=["avx512_bf16"]))
    assert touched_s(ident, seen) == pytest.approx(0.01)
    assert touched_s("torch-compile", seen) == pytest.approx(0.09), "its forward and backward"
    profiled = replace(seen.trace, step_s=0.2)  # small operators alone take longer in its window
    assert touched_s(ident, replace(seen, trace=profiled)) == pytest.approx(0.01)


def test_threads_between_the_ones_named_are_searched_on_many_cores() -> None:
    """Small operators are fastest on 8 of 64 cores, which is neither all, half nor one of them."""
    seen = recording(cpus=64, flags={"num_threads": 64})
    ladder = fix_facts(FIXES["cpu-threads"], seen).ladder
    assert ladder is not None
    named = [settings["num_threads"] for settings in tried("cpu-threads", seen)]
    assert any(5 <= value <= 12 for value in ladder.further(named))


@pytest.mark.parametrize("ident", ["torch-compile", "mixed-precision", "channels-last"])
def test_the_hosts_phases_bound_what_the_host_computes_alone(ident: str) -> None:
    """Without a trace compiling was thought to gain 1.5x at most, and a lower precision 7.8x."""
    phases = fix_facts(FIXES[ident], recording()).phases
    assert phases == fix_facts(FIXES["cpu-bfloat16-products"], recording()).phases != frozenset()
    assert not fix_facts(FIXES[ident], recording(model={}, gpu=AMPERE)).phases
    assert fix_facts(FIXES["loader-workers"], recording(model={}, gpu=AMPERE)).phases


def test_biases_are_dropped_from_models_that_can_be_watched() -> None:
    seen = {"conv_bias_before_norm": 4}
    assert tried("conv-bias-off", recording(model=seen)) == [{}]
    assert refused("conv-bias-off", recording(model={})) == "no-bias-before-norm"
    assert refused("conv-bias-off", recording(model=seen | {"compiled": True})) == "compiled"
    wrapped = seen | {"data_parallel": "FSDP"}
    assert refused("conv-bias-off", recording(model=wrapped)) == "wrapped"


def test_a_cache_is_offered_untried_where_launches_end_within_the_first_epoch() -> None:
    fix = FIXES["decoded-cache"]
    first = recording(loader={"samples": 320, "dataset_length": 5000})
    assert refused("decoded-cache", first) == "first-epoch-alone-unexamined"

    def checked(**found: Any) -> Recording:
        check = SampleCheck(loader=0, samples=8, **found)
        return replace(first, processes=[replace(first.main, sample_check=check)])

    random = checked(same=False, why=fact("draws-random-numbers"))
    assert refused("decoded-cache", random) == "first-epoch-alone"
    same = checked(same=True)
    assert fix.refuses(same) is None and fix.by_hand(same)
    assert "8 samples" in fix.instruction({}, same), "how many were compared"
    second = recording(loader={"samples": 320, "dataset_length": 5000, "iterators": 2})
    assert not fix.by_hand(second)
    assert "Not measured" not in fix.instruction({}, second)
    check = SampleCheck(loader=0, samples=8, same=False, why=fact("draws-random-numbers"))
    drawn = replace(second, processes=[replace(second.main, sample_check=check)])
    assert refused("decoded-cache", drawn) == "samples-must-not-be-kept", "no trial is wasted on it"


def test_workers_for_a_dataset_that_changes_itself_are_doubted_at_the_line() -> None:
    line = Location(file="/home/me/work/train.py", line=8, function="__getitem__")
    seen = {"dataset_writes": [DatasetWrite(name="self.seen", location=line)]}
    changes = [{"name": "self.seen", "file": line.file, "line": 8}]
    alone = recording(loader=seen)
    doubt = fact("dataset-changed-in-workers", changes=changes)
    assert FIXES["loader-workers"].doubt(alone) == doubt
    cached = fact("dataset-unchanged-by-cache", changes=changes)
    assert FIXES["decoded-cache"].doubt(alone) == cached
    workers = recording(loader=seen | {"num_workers": 2})
    assert FIXES["loader-workers"].doubt(workers) is None, "they change copies today"
    doubt = fact("dataset-changed-in-kept-workers", changes=changes)
    assert FIXES["persistent-workers"].doubt(workers) == doubt
    assert fix_facts(FIXES["loader-workers"], alone).doubted


def test_a_cache_of_the_dataset_forbids_no_workers() -> None:
    line = Location(file="/home/me/work/train.py", line=8, function="__getitem__")
    kept = DatasetWrite(name="self.kept", location=line, cache=True)
    for seen in (recording(loader={}), recording(loader={"dataset_writes": [kept]})):
        for ident in ("loader-workers", "persistent-workers", "decoded-cache"):
            assert FIXES[ident].doubt(seen) is None
            assert not fix_facts(FIXES[ident], seen).doubted
        assert numbers(seen)


def test_larger_batches_are_multiples_of_eight_within_the_dataset() -> None:
    sizes = [one["batch_size"] for one in tried("larger-batch", recording(loader={}))]
    assert sizes == [64]
    odd = recording(loader={"batch_size": 6})
    assert [one["batch_size"] for one in tried("larger-batch", odd)] == [16]
    small = recording(loader={"dataset_length": 100})
    assert [one["batch_size"] for one in tried("larger-batch", small)] == [64]
    assert refused("larger-batch", recording(loader={"dataset_length": 40})) == "too-few-samples"
    assert (
        refused("larger-batch", recording(loader={"batch_size": None})) == "batches-from-elsewhere"
    )


@pytest.mark.parametrize(("name", "rate"), [("sgd.SGD", "0.2"), ("adamw.AdamW", "0.141")])
def test_the_learning_rate_follows_the_batch(name: str, rate: str) -> None:
    seen = recording(loader={}, optimizer={"cls": f"torch.optim.{name}", "lr": 0.1})
    text = FIXES["larger-batch"].instruction({"batch_size": 64}, seen)
    assert "train.py:42  DataLoader(..., batch_size=64)" in text
    assert f"lr={rate})" in text


def test_busy_workers_take_cores_from_the_threads_of_operators() -> None:
    seen = recording(cpus=2, loader={"sample_cpu_share": 0.98}, flags={"num_threads": 2})
    together = FIXES["loader-workers"].together
    assert together({"num_workers": 2}, seen) == {"cpu-threads": {"num_threads": 1}}
    large = recording(cpus=16, loader={"sample_cpu_share": 0.98}, flags={"num_threads": 8})
    assert together({"num_workers": 4}, large) == {}
    assert together({"num_workers": 12}, large) == {"cpu-threads": {"num_threads": 4}}
    waiting = recording(cpus=2, loader={"sample_cpu_share": 0.05}, flags={"num_threads": 2})
    assert together({"num_workers": 8}, waiting) == {}


def test_the_collector_is_frozen_only_where_it_costs_something() -> None:
    fix = FIXES["gc-freeze"]
    assert fix.refuses(recording(gc_s=0.05)) is None
    assert refused("gc-freeze", recording(gc_s=0.001)) == "collection-hardly-matters"


@pytest.mark.parametrize(("through", "edited"), [(None, True), ("stable_baselines3", False)])
def test_no_line_is_edited_for_what_a_library_makes(through: str | None, edited: bool) -> None:
    made = {"supports_fused": True, "location": replace(HERE, through=through)}
    found = catalogue.fixes()["fused-optimizer"].edits({"fused": True}, recording(optimizer=made))
    assert bool(found) == edited
    loader = {"location": replace(HERE, through=through)}
    workers = catalogue.fixes()["loader-workers"]
    assert bool(workers.edits({"num_workers": 2}, recording(loader=loader))) == edited


def test_what_a_fix_looks_for_in_the_source_is_looked_for_once_for_each_recording() -> None:
    """What refuses a fix, bounds it and sets it walked through the same source three times."""
    asked = []

    def look(of: Recording) -> int:
        asked.append(of)
        return len(asked)

    once = asked_once(look)
    recordings = recording(), recording()
    answers = [once(of) for of in (recordings[0], recordings[0], recordings[1], recordings[0])]
    assert answers == [1, 1, 2, 3]


@pytest.mark.parametrize("pads", [0, 3])
def test_a_patch_cuts_off_padding_and_no_token(pads: int) -> None:
    """Where another token pads, a batch that ends with token 0 lost it; columns were counted."""
    import torch

    call = {"name": "model", "location": {"file": "/w/infer.py", "line": 4}}
    model = {"forwards": 9, "common_padding_share": 0.5, "padding_token": pads, "call": call}
    models = [{"ident": 0, **model}]
    padded = partial_recordings.recording({"processes": [{"pid": 1, "models": models}]})
    [edit] = catalogue.fixes()["pad-to-longest"].edits({}, padded)
    cut = edit.method.format(argument="ids")
    real = [[5, pads, 6, 3 - pads], [7, pads, pads, pads]]  # a column of padding lies within
    ids = torch.tensor([[*row, *[pads] * 4] for row in real])
    assert eval(cut, {"ids": ids}).tolist() == real
    assert eval(cut, {"ids": torch.full((2, 8), pads)}).shape == (2, 1)
