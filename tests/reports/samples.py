"""Realistic reports, one for each way a run can end."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torchdoctor.reports.verdict import with_sentences
from torchdoctor.schema import (
    NOT_WORTH_ITS_TIME,
    Baseline,
    Boundary,
    Ceiling,
    ContainerLimits,
    Diagnosis,
    Ending,
    Environment,
    Evidence,
    Finding,
    FixSet,
    Gpu,
    Interval,
    Location,
    Overhead,
    PatchTrial,
    Question,
    Recommendation,
    RecommendedFix,
    Report,
    SensorStatistics,
    Shares,
    StepStatistics,
    StepTime,
    Trial,
    TriedCeiling,
    Verdict,
    WorkloadRecord,
    fact,
)
from torchdoctor.schema.gate import GateMetric, GateReport
from torchdoctor.schema.record_files import encode

HOME = "/home/ada/projects/flowers"
CPU_MACHINE = Environment(
    torch="2.6.0+cpu",
    python="3.11.7",
    platform="Linux-6.1-x86_64",
    cpu="AMD EPYC 7763 64-Core Processor",
    cpu_cores=64,
    usable_cpus=4.0,
    cpu_features=["avx2"],
    memory_bytes=16_000_000_000,
    container=ContainerLimits(cpu_quota=4.0, memory_bytes=16_000_000_000, shm_bytes=64_000_000),
    sandbox="overlay",
)
GPU_MACHINE = Environment(
    torch="2.6.0+cu124",
    python="3.12.3",
    platform="Linux-6.5-x86_64",
    cpu="Intel(R) Xeon(R) Platinum 8462Y+",
    cpu_cores=64,
    usable_cpus=32.0,
    memory_bytes=512_000_000_000,
    gpus=[
        Gpu(
            index=index,
            name="NVIDIA H100 80GB HBM3",
            memory_bytes=85_899_345_920,
            compute_capability="9.0",
        )
        for index in range(2)
    ],
    driver="550.54.15",
    cuda="12.4",
    sandbox="overlay",
)


def refused(fix: str, why: str, sentence: str) -> Trial:
    told = Evidence(fact=why, sentence=sentence)
    return Trial(fixes=FixSet.of(fix), verdict="refused", reason=sentence, why=[told])


def between(estimate: float, low: float, high: float) -> Interval:
    return Interval(estimate=estimate, low=low, high=high)


def steps(mean_s: float, **shares: float) -> StepStatistics:
    """Steps whose phases are these shares of the mean, e.g. data_wait=0.78."""
    return StepStatistics(
        boundary=Boundary(kind="loader"),
        how_found=(
            "A step is one batch of the DataLoader made at train.py:31: each has one backward "
            "and one optimizer step."
        ),
        steps=50,
        warmup_steps=10,
        median_s=mean_s,
        mean_s=mean_s,
        p10_s=mean_s * 0.9,
        p90_s=mean_s * 1.1,
        **{f"{name}_s": share * mean_s for name, share in shares.items()},
    )


LOADER_EDIT = """\
--- a/train.py
+++ b/train.py
@@ -28,7 +28,8 @@ def main() -> None:
     dataset = Flowers(root, transform=augment)
     sampler = RandomSampler(dataset)

-    loader = DataLoader(dataset, batch_size=32, sampler=sampler)
+    loader = DataLoader(dataset, batch_size=32, sampler=sampler, num_workers=4,
+                        persistent_workers=True)

     model = resnet18(num_classes=102)
     optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
"""


def worded(sample: Callable[[], Report]) -> Callable[[], Report]:
    """Return the sample with the sentences of its facts, as every report has them."""
    return lambda: with_sentences(sample())


@worded
def loader_bound() -> Report:
    """Data loading on a CPU machine: the plain, good case."""
    return Report(
        torchdoctor_version="0.1.0",
        created="2025-06-01T12:00:00Z",
        elapsed_s=58.2,
        workload=WorkloadRecord(command=["train.py", "--epochs", "3"], cwd=HOME),
        environment=CPU_MACHINE,
        baseline=Baseline(
            step_time_s=StepTime(median=0.4123, p10=0.3981, p90=0.4554, steps=50, mean=0.4188),
            samples_per_s=77.6,
            shares=Shares(data_loader=0.78, cpu=0.205, other=0.015),
            peak_memory_bytes=1_320_000_000,
            launches_s=[0.41, 0.42, 0.41, 0.43],
            measured="side by side",
        ),
        diagnosis=Diagnosis(
            bottleneck="data_loader",
            detail="loader-cpu-bound",
            verdict=Verdict(
                kind="data_loader",
                share=0.78,
                place=Location(file=f"{HOME}/train.py", line=31, function="main"),
            ),
            path=[
                Question(
                    question="Is data loader time high?",
                    answer="yes",
                    metric="share of the step spent waiting for data",
                    value=0.78,
                    threshold=0.2,
                    source="XProf input pipeline analyzer",
                )
            ],
            findings=[
                Finding(
                    check="loader-cpu-bound",
                    share_of_step=0.78,
                    severity="high",
                    evidence=[
                        fact("cpu-time", busy=0.98, queued=None, workers=0, cpus=4.0),
                        fact("sample-time", seconds=0.0102),
                    ],
                    location=Location(file=f"{HOME}/train.py", line=31, function="main"),
                    fixes=["loader-workers"],
                ),
                Finding(
                    check="single-tensor-optimizer",
                    share_of_step=0.031,
                    evidence=[fact("one-by-one", share=0.031, name="SGD", tensors=62)],
                    location=Location(file=f"{HOME}/train.py", line=34),
                    fixes=["fused-optimizer"],
                ),
            ],
        ),
        trials=[
            Trial(
                fixes=FixSet.of("loader-workers", {"num_workers": 2}),
                speedup=between(1.832, 1.788, 1.877),
                verdict="faster",
                numerics="identical",
                risk=1,
                memory_change_bytes=212_000_000,
                cost_s=41.0,
                pairs=6,
            ),
            Trial(
                fixes=FixSet.of("loader-workers", {"num_workers": 4}),
                speedup=between(3.098, 2.904, 3.305),
                verdict="faster",
                numerics="identical",
                risk=1,
                memory_change_bytes=421_000_000,
                cost_s=33.0,
                pairs=6,
            ),
            Trial(
                fixes=FixSet.of("fused-optimizer"),
                speedup=between(1.006, 0.991, 1.021),
                verdict="same",
                numerics="within-rounding",
                risk=1,
                memory_change_bytes=0,
                cost_s=28.0,
                pairs=2,
            ),
            Trial(
                fixes=FixSet.of("torch-compile", {"mode": "default"}),
                speedup=between(0.948, 0.921, 0.976),
                verdict="slower",
                numerics="within-rounding",
                risk=1,
                memory_change_bytes=350_000_000,
                cost_s=52.0,
                pairs=2,
                setup_s=38.4,
            ),
            refused("pin-memory", "no-gpu", "There is no GPU"),
            refused("tf32", "no-gpu", "There is no GPU"),
            refused("cudnn-benchmark", "no-gpu", "There is no GPU"),
            refused(
                "no-grad-evaluation",
                "never-evaluated",
                "The program never evaluated while it was watched",
            ),
        ],
        recommendation=Recommendation(
            fixes=[
                RecommendedFix(
                    fix="loader-workers",
                    settings={"num_workers": 4},
                    edit=LOADER_EDIT,
                    location=Location(file=f"{HOME}/train.py", line=31),
                )
            ],
            speedup=between(3.098, 2.904, 3.305),
            numerics="identical",
            peak_memory_bytes=1_741_000_000,
            pairs=6,
            patch=LOADER_EDIT,
            patch_fixes=["loader-workers"],
            patch_trial=PatchTrial(
                speedup=between(3.098, 2.904, 3.305), numerics="identical", pairs=6
            ),
            handed_out="patch",
        ),
        noise_floor=between(1.001, 0.989, 1.013),
        overhead=Overhead(
            probe_us_per_step=11.3,
            probe_share=0.00003,
            profiler_window="The profiler ran for 4 steps in a launch of its own.",
        ),
        steps=steps(0.4188, data_wait=0.78, forward=0.07, backward=0.105, optimizer=0.031),
        sensors=SensorStatistics(samples=210, window_s=21.0, cpu_share=0.27),
        doubts=["/dev/shm holds 64 MB: more than 4 workers may run out of shared memory."],
        run_folder=f"{HOME}/torchdoctor-runs/2025-06-01T12-00-00",
        reproduce=[
            "torchdoctor run --budget 5m train.py --epochs 3",
            "torchdoctor run --fixes loader-workers train.py --epochs 3",
        ],
    )


@worded
def compute_bound() -> Report:
    """Two H100, several fixes that stack, long settings and paths."""
    model = f"{HOME}/src/flowers/models/encoders/vision_transformer_with_registers.py"
    return Report(
        torchdoctor_version="0.1.0",
        created="2025-06-02T08:30:00Z",
        elapsed_s=312.0,
        workload=WorkloadRecord(
            command=["torchrun", "--nproc-per-node", "2", "-m", "flowers.pretrain"], cwd=HOME
        ),
        environment=GPU_MACHINE,
        baseline=Baseline(
            step_time_s=StepTime(median=0.2114, p10=0.2098, p90=0.2140, steps=80, mean=0.212),
            samples_per_s=2419.0,
            shares=Shares(
                gpu=0.861,
                memcpy=0.012,
                memset=0.001,
                communication=0.048,
                runtime=0.021,
                data_loader=0.006,
                cpu=0.043,
                other=0.008,
            ),
            peak_memory_bytes=41_200_000_000,
        ),
        diagnosis=Diagnosis(
            bottleneck="gpu",
            detail="low-precision-unused",
            verdict=Verdict(kind="gpu", share=0.861, place=Location(file=model, line=212)),
            path=[
                _no("Is data loader time high?", "share of the step spent waiting", 0.006, 0.2),
                _no("Is memcpy high?", "share of the step in exposed copies", 0.012, 0.05),
                _no("Is communication high?", "exposed share of the step", 0.048, 0.1),
                replace(
                    _no("Is GPU utilization high?", "kernel share of the step", 0.861, 0.5),
                    answer="yes",
                    source="TensorBoard profiler plugin",
                ),
            ],
            findings=[
                Finding(
                    check="low-precision-unused",
                    share_of_step=0.62,
                    severity="high",
                    evidence=[fact("kernels", share=0.62, dtype="bfloat16")],
                    location=Location(file=model, line=212),
                    fixes=["mixed-precision", "tf32"],
                ),
                Finding(
                    check="pageable-copies",
                    share_of_step=0.012,
                    evidence=[fact("pageable", copies=2.0)],
                    fixes=["pin-memory"],
                ),
            ],
        ),
        ceilings={"data_loader": Ceiling(speedup=between(1.008, 0.999, 1.017)), "gpu": None},
        ceiling_trials=[
            TriedCeiling(
                ceiling="loader-batches",
                branch="data_loader",
                removes="its data loader",
                share=0.006,
                speedup=between(1.008, 0.999, 1.017),
                verdict="nothing",
                pairs=8,
            ),
            TriedCeiling(
                ceiling="answered-waits",
                branch="cpu",
                removes="waits for values (.item() and the like)",
                whole=False,
                reason="The program did not go on with it: IndexError.",
            ),
        ],
        trials=[
            Trial(
                fixes=FixSet.of("mixed-precision", {"dtype": "bfloat16"}),
                speedup=between(1.912, 1.887, 1.937),
                verdict="faster",
                numerics="within-seed-noise",
                risk=2,
                memory_change_bytes=-11_300_000_000,
                pairs=6,
            ),
            Trial(
                fixes=FixSet.of(
                    "torch-compile", {"mode": "max-autotune", "fullgraph": False, "dynamic": False}
                ),
                speedup=between(1.341, 1.318, 1.365),
                verdict="faster",
                numerics="within-rounding",
                risk=1,
                memory_change_bytes=1_900_000_000,
                pairs=6,
                setup_s=184.0,
                break_even_steps=3410,
            ),
            Trial(
                fixes=FixSet.of("tf32"),
                speedup=between(1.522, 1.508, 1.537),
                verdict="faster",
                numerics="within-seed-noise",
                risk=2,
                memory_change_bytes=0,
                pairs=6,
            ),
            Trial(
                fixes=FixSet.of("larger-batch", {"batch_size": 1024}),
                speedup=between(1.121, 1.108, 1.134),
                verdict="faster",
                numerics="changed",
                numerics_reason="fewer, larger steps: losses leave the envelope at step 3",
                risk=3,
                memory_change_bytes=33_000_000_000,
                pairs=6,
            ),
            Trial(
                fixes=FixSet.of("pin-memory"),
                speedup=between(1.009, 0.988, 1.031),
                verdict="unclear",
                numerics="identical",
                memory_change_bytes=0,
                reason="2 pairs do not decide, and the budget was spent",
                pairs=2,
            ),
            Trial(
                fixes=FixSet.of("channels-last"),
                speedup=between(0.999, 0.994, 1.004),
                verdict="same",
                numerics="within-rounding",
                risk=1,
                memory_change_bytes=0,
                pairs=2,
            ),
            Trial(
                fixes=FixSet.of("loader-workers", {"num_workers": 16}),
                verdict="failed",
                reason="DataLoader worker (pid 4711) was killed by signal 9: out of memory",
            ),
            Trial(
                fixes=FixSet.of("no-grad-evaluation"),
                verdict="refused",
                reason="Evaluation already runs without gradients",
            ),
        ],
        recommendation=Recommendation(
            fixes=[
                RecommendedFix(
                    fix="mixed-precision",
                    settings={"dtype": "bfloat16"},
                    instruction=(
                        'with torch.autocast("cuda", dtype=torch.bfloat16):\n'
                        "    loss = model(images, labels)"
                    ),
                    location=Location(file=model, line=212),
                ),
                RecommendedFix(
                    fix="torch-compile",
                    settings={"mode": "max-autotune", "fullgraph": False, "dynamic": False},
                    instruction=(
                        'model.compile(mode="max-autotune", fullgraph=False, dynamic=False)'
                        "  # before the first step"
                    ),
                ),
            ],
            speedup=between(2.613, 2.531, 2.698),
            numerics="within-seed-noise",
            peak_memory_bytes=31_400_000_000,
            pairs=6,
            handed_out="by-hand",
            also_offered=[
                RecommendedFix(
                    fix="pad-to-multiple",
                    instruction="nn.Linear(768, 50304)  # was 50257: a multiple of 64",
                    location=Location(file=model, line=88),
                )
            ],
        ),
        noise_floor=between(1.000, 0.995, 1.005),
        overhead=Overhead(probe_us_per_step=14.0, probe_share=0.00007),
        steps=replace(
            steps(0.212, data_wait=0.006, h2d_copy=0.012, forward=0.31, backward=0.6),
            trainers=2,
        ),
        doubts=[
            "Losses are compared over 90 steps; what bfloat16 does after days of training "
            "cannot be seen in them."
        ],
        run_folder="torchdoctor-runs/2025-06-02T08-30-00",
        reproduce=[
            "torchdoctor run --budget 20m --allow-training-changes --fixes "
            "mixed-precision,torch-compile,tf32 -- torchrun --nproc-per-node 2 -m flowers.pretrain"
        ],
    )


def _no(question: str, metric: str, value: float, threshold: float) -> Question:
    return Question(
        question=question,
        answer="no",
        metric=metric,
        value=value,
        threshold=threshold,
        source="XProf",
    )


@worded
def nothing_found() -> Report:
    """A tuned program: no bottleneck, and nothing helped."""
    return Report(
        torchdoctor_version="0.1.0",
        workload=WorkloadRecord(command=["tuned.py"], cwd=HOME),
        environment=CPU_MACHINE,
        baseline=Baseline(
            step_time_s=StepTime(median=0.0213, p10=0.0209, p90=0.0221, steps=200),
            samples_per_s=3004.0,
            shares=Shares(data_loader=0.004, cpu=0.98, other=0.016),
        ),
        diagnosis=Diagnosis(
            bottleneck="none",
            verdict=Verdict(kind="none"),
            path=[
                _no("Is data loader time high?", "share of the step spent waiting", 0.004, 0.2),
                Question(
                    question="Is GPU utilization high?",
                    answer="no GPU",
                    metric="kernel share of the step",
                    value=None,
                    threshold=None,
                    source="",
                ),
                Question(
                    question="Is CPU overhead high?",
                    answer="no",
                    metric="host time outside large operators, share of the step",
                    value=0.1996,
                    threshold=0.2,
                    source="measured on the sample workloads",
                ),
            ],
        ),
        trials=[
            Trial(
                fixes=FixSet.of("fused-optimizer"),
                speedup=between(1.003, 0.99, 1.016),
                p_helps=0.04,
                expected=1.001,
                upper_bound=1.004,
                because="no finding points to it, but it may help",
                choice=fact("may-help"),
                verdict="same",
                numerics="within-rounding",
                risk=1,
                memory_change_bytes=0,
            ),
            Trial(
                fixes=FixSet.of("cpu-threads", {"threads": 2}),
                speedup=between(0.82, 0.79, 0.85),
                p_helps=0.0,
                expected=0.82,
                upper_bound=0.84,
                because="treats cpu-execution, 98 % of the step",
                choice=fact("treats-cost", check="cpu-execution", share=0.98, share_of=""),
                verdict="slower",
                numerics="within-rounding",
                risk=1,
                memory_change_bytes=0,
            ),
            Trial(
                fixes=FixSet.of("allocator"),
                reason="not worth its time",
                why=[fact(NOT_WORTH_ITS_TIME)],
                p_helps=0.06,
                expected=0.99,
                upper_bound=1.02,
                because="not worth its time",
                choice=fact(NOT_WORTH_ITS_TIME),
            ),
        ],
        ending=Ending(reason="nothing to gain", after_s=41.0, budget_s=300.0),
        noise_floor=between(0.999, 0.991, 1.007),
        overhead=Overhead(probe_us_per_step=9.0, probe_share=0.0004),
        run_folder="torchdoctor-runs/tuned",
        reproduce=["torchdoctor run tuned.py"],
    )


def interrupted() -> Report:
    """Ctrl-C after two trials: no recommendation measured, one fix already proven."""
    whole = loader_bound()
    return replace(
        whole,
        trials=[whole.trials[1], replace(whole.trials[2], verdict="unclear", reason="1 pair")],
        recommendation=Recommendation(),
        noise_floor=None,
        interrupted=True,
        doubts=["The run was interrupted: no A/A candidate was measured."],
    )


def diagnosed_only() -> Report:
    """--no-fixes: steps by phase, no trace, no trials."""
    whole = loader_bound()
    return replace(
        whole,
        baseline=replace(whole.baseline, shares=Shares(), launches_s=[]),
        trials=[],
        no_trials_reason="No fix was tried, as --no-fixes asks.",
        recommendation=Recommendation(),
        noise_floor=None,
        doubts=[],
        reproduce=["torchdoctor run --no-fixes train.py --epochs 3"],
    )


_WEIRD = "Read \x1b[31m<b>[red]|weird|[/red]</b>\x1b[0m in `stream.py`."


@worded
def refused_heavy() -> Report:
    """Hardly anything applies; texts from the program that try to break the layout."""
    reason = "The dataset is an IterableDataset that does not shard itself by worker"
    return Report(
        torchdoctor_version="0.1.0",
        workload=WorkloadRecord(command=["python", "-m", "stream", "--path", "a b"], cwd=HOME),
        environment=CPU_MACHINE,
        baseline=Baseline(
            step_time_s=StepTime(median=0.000093, p10=0.00009, p90=0.0001, steps=50),
            shares=Shares(data_loader=0.31, cpu=0.6, other=0.09),
        ),
        diagnosis=Diagnosis(
            bottleneck="data_loader",
            sentence="Training waits for data.",
            path=[
                Question(
                    question="Is data loader time high?",
                    answer="yes",
                    metric="share of the step spent waiting for data",
                    value=0.31,
                    threshold=0.2,
                    source="XProf",
                )
            ],
            findings=[
                Finding(
                    check="data-wait",
                    share_of_step=0.31,
                    severity="moderate",
                    evidence=[
                        Evidence(fact="weird", sentence=_WEIRD),
                    ],
                    location=Location(file=f"{HOME}/{'deep/' * 16}stream.py", line=7),
                )
            ],
        ),
        trials=[
            *(
                Trial(fixes=FixSet.of(fix), verdict="refused", reason=reason)
                for fix in ("loader-workers", "persistent-workers", "prefetch-factor")
            ),
            *(
                Trial(fixes=FixSet.of(fix), verdict="refused", reason="There is no GPU")
                for fix in ("pin-memory", "tf32", "cudnn-benchmark", "channels-last")
            ),
            Trial(
                fixes=FixSet.of("torch-compile", {"mode": "default"}),
                verdict="failed",
                reason="RuntimeError: [Errno 2] no C++ compiler was found",
            ),
        ],
        noise_floor=between(1.052, 1.021, 1.084),
        doubts=["The A/A candidate excludes 1: the machine was too noisy."],
        run_folder="torchdoctor-runs/" + "very-long-name-" * 6,
        reproduce=["torchdoctor run -- python -m stream --path 'a b'"],
    )


SAMPLES = {
    "loader_bound": loader_bound,
    "compute_bound": compute_bound,
    "nothing_found": nothing_found,
    "interrupted": interrupted,
    "diagnosed_only": diagnosed_only,
    "refused_heavy": refused_heavy,
}


GATE = GateReport(
    workload=WorkloadRecord(command=["train.py"]),
    environment=Environment(),
    reference="main (0123456789)",
    verdict="slower",
    sentence="Slower: the new version takes 1.08x the time per step, more than the 2 % allowed.",
    metrics=[
        GateMetric(
            name="step_time", reference=0.0101, new=0.0109, unit="s/step", tolerance=0.02,
            ratio=Interval(estimate=1.08, low=1.05, high=1.11), verdict="worse",
        )
    ],
    pairs=6,
    pair_ratios=[1.05, 1.09, 1.07, 1.1, 1.08, 1.11],
    measured="side by side",
)  # fmt: skip


def outline_of_1_0() -> dict[str, Any]:
    """Return a report as schema 1.0 had it, with sentences in place of facts and a verdict."""
    outline: dict[str, Any] = json.loads(encode(loader_bound()))
    diagnosis = outline["diagnosis"]
    diagnosis["location"] = diagnosis.pop("verdict")["place"]
    diagnosis["sentence"] = "Training waits for data 78% of each step. Fetching is CPU time."
    diagnosis["findings"][0]["evidence"] = ["Fetching is CPU time.", "One sample takes 10 ms."]
    diagnosis["findings"][1]["evidence"] = ["SGD updates 62 tensors one by one."]
    return {**outline, "schema_version": "1.0", "trials": []}
