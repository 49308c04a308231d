"""Tokens, MFU, energy and savings, from what was measured alone: what is not known stays None."""

from torchdoctor.queries.lookup import training_models
from torchdoctor.queries.outcomes import is_proven
from torchdoctor.runs.run_settings import RunSettings
from torchdoctor.schema import (
    Baseline,
    Efficiency,
    Interval,
    Recommendation,
    Recording,
    Saving,
    TraceStatistics,
)

_TOKENS = ("int32", "int64")
_HOUR_S = 3600.0
_BOUNDS = ("estimate", "low", "high")


def efficiency(
    recording: Recording,
    baseline: Baseline,
    recommended: Recommendation,
    settings: RunSettings,
) -> Efficiency | None:
    """Return the figures of a run; None: not one is known."""
    rate = baseline.samples_per_s
    length = _tokens_of_a_sample(recording)
    figures = Efficiency(
        samples_per_s=rate,
        tokens_per_s=rate * length if rate is not None and length is not None else None,
        mfu=_mfu(recording),
        gpu_energy_j_per_step=_per_step(recording, recording.sensors.gpu_energy_j),
        cpu_energy_j_per_step=_per_step(recording, recording.sensors.cpu_energy_j),
        saving=_saving(baseline, recommended, settings.steps_total, settings.cost_per_hour),
    )
    return figures if figures != Efficiency() else None


def of_trace(trace: TraceStatistics) -> Efficiency | None:
    """Return the figures of a trace that was given; None: not one is known."""
    mfu = trace.matrix_work.mfu if trace.matrix_work is not None else None
    return Efficiency(mfu=mfu) if mfu is not None else None


def _tokens_of_a_sample(recording: Recording) -> int | None:
    """Return the tokens of a sample where all batches are rows of tokens of one length."""
    models = [model for model in training_models(recording) if model.embeddings]
    if len(models) != 1 or len(models[0].input_tensors) != 1:
        return None
    inputs = models[0].input_tensors[0]
    if not inputs or len(inputs[0].sizes) != 2 or inputs[0].dtype not in _TOKENS:
        return None
    rows, length = inputs[0].sizes
    batches = {loader.batch_size for loader in recording.main.loaders if loader.batches}
    return length if length >= 2 and rows in batches else None


def _mfu(recording: Recording) -> float | None:
    """Return the share of an unprofiled step: the profiler's own time is no part of it."""
    trace = recording.trace
    steps = recording.steps
    if trace is None or trace.matrix_work is None or trace.matrix_work.mfu is None:
        return None
    if steps is None or not steps.mean_s or not trace.step_s:
        return None
    return trace.matrix_work.mfu * trace.step_s / steps.mean_s


def _per_step(recording: Recording, energy_j: float | None) -> float | None:
    """Return the energy of a step, of the launch in which both were measured."""
    steps = recording.steps
    window_s = recording.sensors.window_s
    if energy_j is None or steps is None or not window_s:
        return None
    return energy_j / window_s * steps.mean_s


def _saving(
    baseline: Baseline,
    recommended: Recommendation,
    steps_total: int | None,
    cost_per_hour: float | None,
) -> Saving | None:
    time = baseline.step_time_s
    if steps_total is None or time is None:
        return None
    hours = steps_total * (time.mean or time.median) / _HOUR_S
    gain = recommended.speedup
    saved = None
    if recommended.fixes and gain is not None and is_proven(gain, recommended.pairs):
        saved = _scaled(
            Interval(**{bound: 1 - 1 / getattr(gain, bound) for bound in _BOUNDS}), hours
        )
    cost = None
    cost_saved = None
    if cost_per_hour is not None:
        cost = hours * cost_per_hour
        cost_saved = _scaled(saved, cost_per_hour) if saved is not None else None
    return Saving(
        steps_total=steps_total,
        cost_per_hour=cost_per_hour,
        hours=hours,
        hours_saved=saved,
        cost=cost,
        cost_saved=cost_saved,
    )


def _scaled(interval: Interval, by: float) -> Interval:
    return Interval(**{bound: getattr(interval, bound) * by for bound in _BOUNDS})
