"""What weakens a report: remarks with their severity, collected in one place.

A remark of severity "beware" may change a decision: the first screen shows those, the details all.
"""

from collections.abc import Iterable, Iterator, Mapping
from math import isfinite
from statistics import fmean

from torchdoctor.advice.wording import wording
from torchdoctor.queries.hardware import load_of, much_load
from torchdoctor.queries.loading import untold_wait
from torchdoctor.queries.lookup import data_wait_share, long_steps_share
from torchdoctor.queries.slow_reads import cold_mounts
from torchdoctor.schema import OtherLoad, RecommendedFix, Recording, Remark, as_remark, each_once
from torchdoctor.schema.specs import FixSpec
from torchdoctor.trials.outcome import TrialResults

_FEW_STEPS = 12
_COSTLY, _LARGE = 0.2, 0.3  # of a step: for observing it; what its slow ones cost
_WAITED_FOR = 0.05  # of a step; the loader's checks ask the same
_OTHER_TIMES = 1.5  # the observed step against that of the trials' launches, either way


def report_notes(
    recording: Recording, trials: TrialResults | None, load: OtherLoad | None = None
) -> list[Remark]:
    """Return the notes on the recording, and on the trials' launches against it.

    `load`: of others during the trials; where it was much, the first screen says that instead.
    """
    is_told = load is not None and much_load(load.held, load.usable) is not None
    notes = [*_on_recording(recording), *_on_steps(recording), *_on_load(recording, is_told)]
    if trials is None:
        return notes
    return [*notes, *_on_launches(recording, trials), *_on_noise(trials)]


def fix_notes(
    idents: Iterable[str],
    shown: Iterable[RecommendedFix],
    recording: Recording,
    fixes: Mapping[str, FixSpec],
) -> list[Remark]:
    """Return what may go wrong with fixes that were tried or are shown as code, each note once."""
    doubts = [fixes[ident].doubt(recording) for ident in idents if ident in fixes]
    for offered in shown:
        if offered.fix in fixes:
            doubts += wording(fixes[offered.fix], offered.settings, recording).failures
    return list(map(as_remark, each_once(doubt for doubt in doubts if doubt is not None)))


def _detail(ident: str, **values: object) -> Remark:
    return Remark(severity="detail", fact=ident, values=values)


def beware(ident: str, **values: object) -> Remark:
    """Return a remark that may change a decision."""
    return Remark(severity="beware", fact=ident, values=values)


def _on_recording(recording: Recording) -> Iterator[Remark]:
    """Yield the run's doubts, each once, and what the probe itself could not do."""
    yield from map(as_remark, each_once(recording.doubts))
    errors = [error for process in recording.processes for error in process.probe_errors]
    if errors:
        yield _detail("probe-failed", failures=len(errors), first=errors[0])
    if recording.environment.sandbox == "none":
        yield _detail("no-sandbox")


def _on_steps(recording: Recording) -> Iterator[Remark]:
    """Yield what keeps the observed steps from being those of the training."""
    steps = recording.steps
    cost_us = recording.main.probe_cost_us_per_step
    if steps is None:
        return
    if steps.still_warming:
        yield _detail("still-warming")
    if steps.growth is not None:
        yield beware("step-grows")
    if steps.steps < _FEW_STEPS:
        yield beware("few-steps", steps=steps.steps)
    if cost_us is not None and cost_us * 1e-6 > _COSTLY * steps.median_s:
        yield beware("costly-observing", cost_us=cost_us)
    unknown = untold_wait(recording)
    if unknown and (data_wait_share(recording) or 0.0) >= _WAITED_FOR:
        yield as_remark(unknown)


def _on_load(recording: Recording, is_told: bool) -> Iterator[Remark]:
    """Yield what others did on the machine, and how much of the step's time may be theirs."""
    remark = _detail if is_told else beware
    load = load_of([recording.sensors], recording.environment.cpus)
    if load is None:
        return
    share = long_steps_share(recording.steps) if recording.steps is not None else 0.0
    yield remark("busy-machine", load=load, long_steps=share if share >= _LARGE else None)


def _on_launches(recording: Recording, trials: TrialResults) -> Iterator[Remark]:
    """Yield what the observed launch read from a device, or had of another load, and later ones."""
    cold = cold_mounts(recording) if trials.baselines else []
    steps = recording.steps
    if any(not mount.fits for mount in cold):
        yield _detail("files-beyond-cache")
    elif cold:
        yield beware("cold-files")
    logs = [enumerate(launch.losses, 1) for launch in trials.baselines]
    broken = [n for log in logs for n, loss in log if loss is not None and not isfinite(loss)]
    if broken:
        yield beware("loss-not-finite", backward_pass=broken[0])
    times = [s for launch in trials.baselines for s in launch.step_s]
    if steps is None or not times or steps.mean_s <= 0 or any(mount.fits for mount in cold):
        return
    later_s = fmean(times)
    if steps.growth is not None and later_s <= steps.growth.last_s:
        return  # launches of fixes end sooner, and see more of the short steps
    if not 1 / _OTHER_TIMES <= later_s / steps.mean_s <= _OTHER_TIMES:
        yield beware("step-time-changed", observed_s=steps.mean_s, later_s=later_s)


def _on_noise(trials: TrialResults) -> Iterator[Remark]:
    """Yield a note where the untouched program against itself is not 1."""
    noise = trials.noise_floor
    if noise and not (noise.low <= 1 <= noise.high and 0.8 <= noise.estimate <= 1.25):
        yield beware("noisy-machine", ratio=noise.estimate)
