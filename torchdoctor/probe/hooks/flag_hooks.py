"""Global switches of torch: as they are now, and where the program set those that cost time."""

import functools
import os
import sys

from .. import places

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
)


class Flags:
    """What the wrappers saw."""

    def __init__(self):
        self.anomaly_location = None
        self.anomaly_seen = False
        self.threads_location = None
        self.profiler_location = None
        self.profilers_on = 0
        self.zero_grad_to_zero = 0
        self.zero_grad_location = None
        self.gradcheck_calls = 0
        self.grad_scaler = False
        self.schedulers = 0
        self.clip_calls = 0
        self.averaged_by_loop = 0
        self.averaged_location = None


def install(session):
    """Wrap the few functions whose call sites matter; signatures stay."""
    torch = session.torch
    flags = session.flags = Flags()
    _wrap_anomaly(session, torch, flags)
    _before(session, torch, "set_num_threads", lambda *_: _note(flags, "threads_location"))
    if session.phases:  # each hook that an iteration enters costs a timed launch microseconds
        _before(session, torch.optim.Optimizer, "zero_grad", lambda *a, **k: _zero(flags, a, k))
        _before(session, torch.nn.Module, "zero_grad", lambda *a, **k: _zero(flags, a, k))
    _before(session, torch.autograd, "gradcheck", lambda *_, **__: _count(flags))
    _before(session, torch.distributed, "init_process_group", lambda *_, **__: _joins(session))
    _wrap_training(session, torch, flags)
    _wrap_profilers(session, torch, flags)


def _wrap_training(session, torch, flags):
    """What says how training is set up: schedules, clipping, averaged weights, loss scaling."""

    def count(name):
        setattr(flags, name, getattr(flags, name) + 1)

    def averaged(*args, **kwargs):
        # Its own default goes through all tensors at once; a function of the user's, one by one.
        if kwargs.get("avg_fn", args[3] if len(args) > 3 else None) is not None:
            count("averaged_by_loop")
            _note(flags, "averaged_location")

    scheduler = getattr(torch.optim.lr_scheduler, "LRScheduler", None)
    if scheduler is not None:
        _before(session, scheduler, "__init__", lambda *_, **__: count("schedulers"))
    _before(session, torch.optim.swa_utils.AveragedModel, "__init__", averaged)
    if not session.phases:
        return
    for name in ("clip_grad_norm_", "clip_grad_value_"):
        _before(session, torch.nn.utils, name, lambda *_, **__: count("clip_calls"))
    _before(
        session, getattr(torch.amp, "GradScaler", None), "scale", lambda *a, **_: _scales(flags, a)
    )


def facts(session):
    """`flags` of the process facts."""
    torch, flags = session.torch, getattr(session, "flags", None) or Flags()
    backends = torch.backends
    return {
        "anomaly_enabled": bool(torch.is_anomaly_enabled()) or flags.anomaly_seen,
        "anomaly_location": flags.anomaly_location,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "cudnn_benchmark": bool(backends.cudnn.benchmark),
        "cudnn_deterministic": bool(backends.cudnn.deterministic),
        "matmul_tf32": _matmul_tf32(torch),
        "cudnn_tf32": _cudnn_tf32(torch),
        "num_threads": torch.get_num_threads(),
        "num_threads_location": flags.threads_location,
        "interop_threads": torch.get_num_interop_threads(),
        "grad_scaler": flags.grad_scaler,
        "profiler_on": flags.profilers_on > 0,
        "profiler_location": flags.profiler_location,
        "zero_grad_to_zero": flags.zero_grad_to_zero,
        "zero_grad_location": flags.zero_grad_location,
        "backward_location": session.backward_location or None,
        "gradient_location": session.gradient_location,
        "retain_graph": session.retain_graph,
        "gradcheck_calls": flags.gradcheck_calls,
        "schedulers": flags.schedulers,
        "clip_calls": flags.clip_calls,
        "averaged_by_loop": flags.averaged_by_loop,
        "averaged_location": flags.averaged_location,
        "environment": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
    }


def _matmul_tf32(torch):
    try:
        return bool(torch.backends.cuda.matmul.allow_tf32)
    except (AttributeError, RuntimeError):  # RuntimeError: set through the newer interface
        return None


def _cudnn_tf32(torch):
    try:
        return bool(torch.backends.cudnn.allow_tf32)
    except (AttributeError, RuntimeError):
        return None


def _note(flags, name):
    if getattr(flags, name) is None:
        setattr(flags, name, places.here())


def _count(flags):
    flags.gradcheck_calls += 1


def _scales(flags, args):
    # Many programs make a scaler whatever the precision, and switch it off.
    flags.grad_scaler = flags.grad_scaler or bool(args[0].is_enabled())


def _joins(session):
    if getattr(session, "backend_location", None) is None:
        session.backend_location = places.here()


def _zero(flags, args, kwargs):
    value = kwargs.get("set_to_none", args[1] if len(args) > 1 else True)
    if value is False:
        flags.zero_grad_to_zero += 1
        _note(flags, "zero_grad_location")


def _before(session, owner, name, see):
    """Call see(*args, **kwargs) before owner.name; never lets it fail into the program."""
    old = getattr(owner, name, None)
    if old is None:
        return

    @functools.wraps(old)
    def function(*args, **kwargs):
        if session.on:
            try:
                see(*args, **kwargs)
            except Exception as error:
                session.fail(name, error)
        return old(*args, **kwargs)

    setattr(owner, name, function)


def _wrap_anomaly(session, torch, flags):
    modes = torch.autograd.anomaly_mode

    def seen(*args, **kwargs):
        mode = kwargs.get("mode", args[1] if len(args) > 1 else True)
        if mode:
            flags.anomaly_seen = True
            _note(flags, "anomaly_location")

    for cls in (modes.set_detect_anomaly, modes.detect_anomaly):
        default = cls is modes.detect_anomaly

        def see(*args, _default=default, **kwargs):
            # torch.compile's own tracing turns it on for a moment (frames: here, wrapper, caller).
            if sys._getframe(2).f_globals.get("__name__", "").startswith("torch."):
                return
            # detect_anomaly(check_nan) is always on; set_detect_anomaly(mode, ...) says so.
            seen() if _default else seen(*args, **kwargs)

        _before(session, cls, "__init__", see)


def _wrap_profilers(session, torch, flags):
    def started(*_):
        flags.profilers_on += 1
        _note(flags, "profiler_location")

    def stopped(*_):
        flags.profilers_on = max(flags.profilers_on - 1, 0)

    own = session.plan.get("profile") is not None
    classes = [torch.autograd.profiler.profile]
    if not own:  # the probe's own profiler window would count as the user's
        for cls in classes:
            _before(session, cls, "__enter__", started)
            _before(session, cls, "__exit__", stopped)
