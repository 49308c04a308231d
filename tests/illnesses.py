"""What the recorder shows of each illness that the sample workloads have, as partial recordings.

Figures are of the size that real recordings of such programs have; see `partial_recordings` for
what they are merged over.
"""

from __future__ import annotations

from typing import Any

_PLACE = {"file": "/w/train.py", "line": 20, "function": "main"}
_LOADER = {"ident": 0, "location": _PLACE, "batch_size": 32, "batches": 110, "iterators": 1}
_MODEL = {
    "ident": 0,
    "cls": "Model",
    "dtypes": ["float32"],
    "elements": 10**6,
    "parameters": 20,
    "linear": 4,
    "forwards": 110,
}
_ADAM = {"ident": 0, "cls": "torch.optim.adamw.AdamW", "parameters": 20, "supports_fused": True}
_TUNED_ADAM = {**_ADAM, "fused": True, "foreach": False}


def _phases(**share: float) -> dict[str, float]:
    """Phases of a 10 ms step from their shares; what is left is "other"."""
    left = 1.0 - sum(share.values())
    return {f"{name}_s": 0.010 * part for name, part in {**share, "other": left}.items()}


def _process(**more: Any) -> list[dict[str, Any]]:
    return [{"pid": 1, "models": [_MODEL], "optimizers": [_TUNED_ADAM], **more}]


def _trace(compute: float, small: float, python: float, **more: Any) -> dict[str, Any]:
    """A profiler window on a CPU; shares of its 12 ms step (a profiled step is longer)."""
    return {
        "path": "trace.json.gz",
        "steps": 4,
        "step_s": 0.012,
        "compute_s": 0.012 * compute,
        "small_operator_s": 0.012 * small,
        "python_s": 0.012 * python,
        "operator_calls_per_step": 120.0,
        "operator_median_us": 30.0,
        "operators": [{"name": "aten::addmm", "calls_per_step": 8.0, "self_s": 0.005}],
        **more,
    }


_COMPUTING = _phases(data_wait=0.01, forward=0.3, backward=0.6, optimizer=0.03)
_COMPUTE_TRACE = _trace(0.85, 0.08, 0.05)
_CONVOLUTIONS = [
    {"name": "aten::convolution_backward", "calls_per_step": 8.0, "self_s": 0.006},
    {"name": "aten::mkldnn_convolution", "calls_per_step": 8.0, "self_s": 0.003},
]
_GPU_MODEL = {**_MODEL, "device": "cuda:0"}

# name -> (recording, bottleneck, detail, other checks that must be found)
CPU_ILLNESSES: dict[str, tuple[dict[str, Any], str, str, set[str]]] = {
    "slow decode": (
        {
            "steps": _phases(data_wait=0.7, forward=0.1, backward=0.15, optimizer=0.02),
            "processes": _process(loaders=[{**_LOADER, "sample_cpu_share": 0.97}]),
            "trace": _trace(0.2, 0.05, 0.05),
        },
        "data_loader",
        "loader-cpu-bound",
        {"data-wait"},
    ),
    "storage latency": (
        {
            "steps": _phases(data_wait=0.6, forward=0.1, backward=0.25, optimizer=0.02),
            "processes": _process(loaders=[{**_LOADER, "sample_cpu_share": 0.05}]),
            "sensors": {"read_bytes_per_s": 2e6, "iowait_share": 0.3},
        },
        "data_loader",
        "loader-io-bound",
        {"data-wait"},
    ),
    "inline get_batch": (
        {
            "steps": {
                "boundary": {"kind": "optimizer", "ident": 0, "every": 1},
                **_phases(forward=0.1, backward=0.2, optimizer=0.03),
                "before_forward_s": 0.0062,
            },
            "processes": _process(
                stacks=[
                    {
                        "location": {"file": "/w/train.py", "line": 40, "function": "get_batch"},
                        "phase": "after_step",
                        "count": 950,
                        "leaf_file": "numpy/core/fromnumeric.py",
                        "leaf_function": "argsort",
                        "text": "place = np.argsort(keys)",
                    },
                    {
                        "location": {"file": "/w/train.py", "line": 75, "function": "main"},
                        "phase": "after_step",
                        "count": 50,
                        "leaf_file": "w/train.py",
                        "leaf_function": "main",
                        "text": "total += loss.item()",
                    },
                ]
            ),
            "trace": _trace(0.25, 0.05, 0.6),
        },
        "data_loader",
        "inline-batch-preparation",
        {"data-wait"},
    ),
    "many small operators": (
        {
            "steps": _phases(data_wait=0.01, forward=0.35, backward=0.55, optimizer=0.02),
            "processes": _process(),
            "trace": _trace(
                0.05, 0.55, 0.3, operator_calls_per_step=2500.0, operator_median_us=4.0
            ),
        },
        "cpu",
        "many-small-kernels",
        {"python-overhead"},
    ),
    "single-tensor optimizer": (
        {
            "steps": _phases(data_wait=0.01, forward=0.2, backward=0.3, optimizer=0.45),
            "processes": _process(
                optimizers=[{**_ADAM, "parameters": 400, "foreach": False, "location": _PLACE}]
            ),
            "trace": _trace(
                0.35, 0.33, 0.28, operator_calls_per_step=6800.0, operator_median_us=1.3
            ),
        },
        "cpu",
        "single-tensor-optimizer",
        {"optimizer-share"},
    ),
    "compute-bound": (
        {"steps": _COMPUTING, "processes": _process(), "trace": _COMPUTE_TRACE},
        "cpu",
        "compute",
        set(),
    ),
    "compute-bound with bfloat16 units": (
        {
            "steps": _COMPUTING,
            "processes": _process(),
            "trace": _COMPUTE_TRACE,
            "environment": {"cpu_features": ["avx512f", "amx_bf16"]},
        },
        "cpu",
        "compute",
        {"low-precision-unused"},
    ),
    "NCHW convolutions": (
        {
            "steps": _COMPUTING,
            "processes": _process(models=[{**_MODEL, "conv2d": 8, "linear": 1}]),
            "trace": {**_COMPUTE_TRACE, "operators": _CONVOLUTIONS},
        },
        "cpu",
        "convolutions-nchw",
        {"compute"},
    ),
    "anomaly mode": (
        {
            "steps": _phases(data_wait=0.01, forward=0.5, backward=0.45, optimizer=0.02),
            "processes": _process(flags={"anomaly_enabled": True, "anomaly_location": _PLACE}),
            "trace": _trace(0.1, 0.5, 0.35, operator_calls_per_step=900.0, operator_median_us=6.0),
        },
        "cpu",
        "debug-left-on",
        {"many-small-kernels"},
    ),
    "validation with gradients": (
        {
            "steps": {**_COMPUTING, "evaluation_s": 0.0045},
            "processes": _process(
                models=[{**_MODEL, "eval_forwards": 60, "eval_forwards_with_grad": 60}]
            ),
            "trace": _COMPUTE_TRACE,
        },
        "cpu",
        "evaluation-with-gradients",
        set(),
    ),
    "an optimizer that updates whole tables": (
        {
            "steps": _phases(forward=0.02, backward=0.1, optimizer=0.85),
            "processes": _process(),
            "environment": {"cpu_features": ["amx_bf16"]},
            "trace": _trace(
                0.93,
                0.02,
                0.02,
                operators=[{"name": "aten::addcdiv_", "calls_per_step": 4.0, "self_s": 0.010}],
            ),
        },
        "cpu",
        "optimizer-share",
        set(),
    ),
    "frequent evaluation, which waits for its loader": (
        {
            "steps": {
                **_phases(data_wait=0.35, forward=0.45, backward=0.1, optimizer=0.05),
                "evaluation_s": 0.0078,
                "evaluation_wait_s": 0.0033,
                "evaluations": 5,
            },
            "processes": _process(),
            "trace": _trace(0.1, 0.5, 0.3),
        },
        "cpu",
        "evaluation-share",
        set(),
    ),
    "too many threads": (
        {
            "steps": _COMPUTING,
            "processes": _process(flags={"num_threads": 32, "num_threads_location": _PLACE}),
            "trace": _COMPUTE_TRACE,
        },
        "cpu",
        "too-many-threads",
        {"compute"},
    ),
}

_GPU_TRACE = {"path": "trace.json.gz", "steps": 4, "step_s": 0.010, "has_device": True}
GPU_ILLNESSES: dict[str, tuple[dict[str, Any], str, str, set[str]]] = {
    "pageable copies and syncs": (
        {
            "steps": {
                **_phases(data_wait=0.01, h2d_copy=0.4, forward=0.1, backward=0.1, optimizer=0.02),
                "pageable_copies_per_step": 2.0,
            },
            "processes": _process(models=[_GPU_MODEL]),
            "trace": {
                **_GPU_TRACE,
                "gpu_busy_share": 0.25,
                "pageable_copies": 2.0,
                "pageable_wait_s": 0.0035,
                "blocking_copy_s": 0.004,
                "blocking_copy_exposed_s": 0.002,
                "sync_s": 0.002,
                "syncs_per_step": 3.0,
                "shares": {
                    "gpu": 0.25,
                    "memcpy": 0.3,
                    "memset": 0.0,
                    "communication": 0.0,
                    "runtime": 0.2,
                    "data_loader": 0.01,
                    "cpu": 0.14,
                    "other": 0.1,
                },
            },
        },
        "memcpy",
        "pageable-copies",
        {"memcpy-share", "sync-in-step"},
    ),
    "a busy GPU in float32": (
        {
            "steps": _phases(data_wait=0.05, forward=0.2, backward=0.2, optimizer=0.05),
            "processes": _process(models=[_GPU_MODEL], flags={"matmul_tf32": False}),
            "environment": {"gpus": [{"index": 0, "name": "A", "compute_capability": "8.0"}]},
            "trace": {
                **_GPU_TRACE,
                "gpu_busy_share": 0.92,
                "short_kernels_share": 0.1,
                "shares": {
                    "gpu": 0.92,
                    "memcpy": 0.02,
                    "memset": 0.0,
                    "communication": 0.0,
                    "runtime": 0.02,
                    "data_loader": 0.01,
                    "cpu": 0.02,
                    "other": 0.01,
                },
            },
        },
        "gpu",
        "compute",
        {"low-precision-unused", "tf32-off"},
    ),
}

TUNED = {
    "steps": _COMPUTING,
    "processes": _process(flags={"num_threads": 8, "anomaly_enabled": False}),
    "trace": _COMPUTE_TRACE,
}
