"""Global switches of torch: as they are now, and where the program set those that cost time."""

import os
import sys

from .. import places
from ..wrapping import before

_VARIABLES = (
    "CUDA_LAUNCH_BLOCKING",
    "TORCH_DISTRIBUTED_DEBUG",
    "TORCH_SHOW_CPP_STACKTRACES",
    "CUDA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "KMP_BLOCKTIME",
    "KMP_AFFINITY",
    "GOMP_CPU_AFFINITY",
    "LD_PRELOAD",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "ATEN_CPU_CAPABILITY",
    "ONEDNN_MAX_CPU_ISA",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "ONEDNN_VERBOSE",
    "NCCL_DEBUG",
    "TOKENIZERS_PARALLELISM",
)
_COUNTED = ("zero_grad_to_zero", "gradcheck_calls", "schedulers", "clip_calls", "averaged_by_loop")
_LOCATED = ("anomaly", "num_threads", "profiler", "zero_grad", "averaged")


class Flags:
    """The switches that the program sets, from the moment the probe is attached."""

    def __init__(self, session):
        self._session = session
        self._torch = session.torch
        self._counts = dict.fromkeys(_COUNTED, 0)
        self.locations = dict.fromkeys((*_LOCATED, "backend"))
        # Turned on since the last backward pass; on in the last one or before it.
        self._anomaly_began = self._anomaly = self._grad_scaler = False
        self._profilers_on = 0

    def install(self):
        """Wrap the few functions whose call sites matter."""
        torch = self._torch
        optim = self._torch.optim
        anomalies = self._torch.autograd.anomaly_mode
        looks = [
            (torch, "set_num_threads", lambda *_: self._locate("num_threads")),
            (torch.autograd, "gradcheck", self._counting("gradcheck_calls")),
            (torch.distributed, "init_process_group", lambda *_, **__: self._locate("backend")),
            (optim.lr_scheduler.LRScheduler, "__init__", self._counting("schedulers")),
            (optim.swa_utils.AveragedModel, "__init__", self._averages),
            (anomalies.set_detect_anomaly, "__init__", self._detects_anomalies),
            (anomalies.detect_anomaly, "__init__", self._detects_anomalies),
        ]
        if self._session.plan.get("profile") is None:  # the probe's own would count as the user's
            profilers = torch.autograd.profiler
            # torch.profiler's begins there too, where its schedule records.
            looks += [(profilers.profile, "_start_trace", self._profiler_begins)]
            looks += [(profilers.profile, "__exit__", self._profiler_ends)]
            for markers in (profilers.emit_nvtx, profilers.emit_itt):
                looks += [(markers, "__enter__", self._profiler_begins)]
                looks += [(markers, "__exit__", self._profiler_ends)]
        if self._session.phases:  # each hook that an iteration enters costs a timed launch
            looks += [
                (optim.Optimizer, "zero_grad", self._zeroes),
                (torch.nn.Module, "zero_grad", self._zeroes),
                (torch.nn.utils, "clip_grad_norm_", self._counting("clip_calls")),
                (torch.nn.utils, "clip_grad_value_", self._counting("clip_calls")),
                (torch.amp.GradScaler, "scale", self._scales),
                (torch.autograd, "backward", self._asks_of_anomalies),
            ]
        for owner, name, look in looks:
            before(self._session, owner, name, look)

    def _counting(self, name):
        return lambda *_, **__: self._count(name)

    def _count(self, name):
        self._counts[name] += 1

    def _locate(self, name):
        if self.locations[name] is None:
            self.locations[name] = places.here()

    def _averages(self, *args, **kwargs):
        # Its own default goes through all tensors at once; a function of the user's, one by one.
        if kwargs.get("avg_fn", args[3] if len(args) > 3 else None) is not None:
            self._count("averaged_by_loop")
            self._locate("averaged")

    def _scales(self, scaler, *_, **__):
        # Many programs make a scaler whatever the precision, and switch it off.
        self._grad_scaler = self._grad_scaler or bool(scaler.is_enabled())

    def _zeroes(self, *args, **kwargs):
        if kwargs.get("set_to_none", args[1] if len(args) > 1 else True) is False:
            self._count("zero_grad_to_zero")
            self._locate("zero_grad")

    def _detects_anomalies(self, context, *args, **kwargs):
        # torch.compile's own tracing turns it on for a moment (frames: here, two of ours, caller).
        if sys._getframe(3).f_globals.get("__name__", "").startswith("torch."):
            return
        # detect_anomaly(check_nan) is always on; set_detect_anomaly(mode, ...) says so.
        always = isinstance(context, self._torch.autograd.anomaly_mode.detect_anomaly)
        if always or kwargs.get("mode", args[0] if args else True):
            self._anomaly_began = True
            self._locate("anomaly")

    def _asks_of_anomalies(self, *_, **__):
        # What only checked the first steps is no setting of training.
        self._anomaly = self._anomaly_began or bool(self._torch.is_anomaly_enabled())
        self._anomaly_began = False

    def _profiler_begins(self, profiler, *_):
        if profiler.enabled:
            self._profilers_on += 1
            self._locate("profiler")

    def _profiler_ends(self, profiler, *_):
        # torch.profiler's may end without having recorded.
        if profiler.enabled:
            self._profilers_on = max(self._profilers_on - 1, 0)

    def facts(self):
        """Return `flags` of the process facts."""
        session = self._session
        torch = self._torch
        backends = self._torch.backends
        anomaly = bool(torch.is_anomaly_enabled()) or self._anomaly or self._anomaly_began
        return {
            "anomaly_enabled": anomaly,
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "cudnn_benchmark": bool(backends.cudnn.benchmark),
            "cudnn_deterministic": bool(backends.cudnn.deterministic),
            "matmul_tf32": _tf32(backends.cuda.matmul, backends.cuda.matmul),
            "cudnn_tf32": _tf32(backends.cudnn, getattr(backends.cudnn, "conv", None)),
            "sets_fp32_precision": _refuses_older(backends.cuda.matmul, backends.cudnn),
            "num_threads": torch.get_num_threads(),
            "grad_scaler": self._grad_scaler,
            "profiler_on": self._profilers_on > 0,
            "backward_location": session.backward_location or None,
            "gradient_location": session.gradient_location,
            "retain_graph": session.retain_graph,
            "environment": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
            **{name + "_location": self.locations[name] for name in _LOCATED},
            **self._counts,
        }


def _tf32(backend, newer):
    """Return whether TF32 is allowed; `newer`: what has `fp32_precision`, from torch 2.9 on."""
    precision = getattr(newer, "fp32_precision", None)
    if precision is not None:
        return precision == "tf32"
    try:
        return bool(backend.allow_tf32)
    except (AttributeError, RuntimeError):
        return None


def _refuses_older(*backends):
    """Return True where reading `allow_tf32` raises: the program set `fp32_precision` itself."""
    try:
        for backend in backends:
            _ = backend.allow_tf32
    except RuntimeError:
        return True
    except AttributeError:
        return False
    return False
