"""What weakens a report: notes with their severity, collected in one place.

A note of severity "beware" may change a decision: the first screen shows those, the details all.
"""

from collections.abc import Iterable, Iterator, Mapping
from math import isfinite
from statistics import fmean

from torchdoctor.advice.wording import wording
from torchdoctor.facts.hardware import load_of, much_load
from torchdoctor.facts.loading import untold_wait
from torchdoctor.facts.lookup import data_wait_share, long_steps_share
from torchdoctor.facts.slow_reads import cold_mounts
from torchdoctor.trials.outcome import TrialResults
from torchdoctor.words import Note, OtherLoad, RecommendedFix, Recording
from torchdoctor.words.figures import counted, ratio, seconds
from torchdoctor.words.specs import FixSpec

_FEW_STEPS = 12
_COSTLY, _LARGE = 0.2, 0.3  # of a step: for observing it; what its slow ones cost
_WAITED_FOR = 0.05  # of a step; the loader's checks ask the same
_OTHER_TIMES = 1.5  # the observed step against that of the trials' launches, either way


def report_notes(
    recording: Recording, trials: TrialResults | None, load: OtherLoad | None = None
) -> list[Note]:
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
) -> list[Note]:
    """Return what may go wrong with fixes that were tried or are shown as code, each note once."""
    doubts = [fixes[ident].doubt(recording) for ident in idents if ident in fixes]
    known = [fix for fix in shown if fix.fix in fixes]
    failures = [x for f in known for x in wording(fixes[f.fix], f.settings, recording).failures]
    return [_detail(x) for x in dict.fromkeys([*doubts, *failures]) if x is not None]


def _detail(sentence: str) -> Note:
    return Note(severity="detail", sentence=sentence)


def _beware(sentence: str) -> Note:
    return Note(severity="beware", sentence=sentence)


def _on_recording(recording: Recording) -> Iterator[Note]:
    """Yield the run's doubts, each once, and what the probe itself could not do."""
    yield from map(_detail, dict.fromkeys(recording.doubts))
    errors = [error for process in recording.processes for error in process.probe_errors]
    if errors:
        yield _detail(f"The probe failed in {len(errors)} places; the first: {errors[0]}.")
    if recording.environment.sandbox == "none":
        yield _detail("No sandbox: each launch wrote to your own files.")


def _on_steps(recording: Recording) -> Iterator[Note]:
    """Yield what keeps the observed steps from being those of the training."""
    steps, cost_us = recording.steps, recording.main.probe_cost_us_per_step
    if steps is None:
        return
    if steps.still_warming:
        yield _detail(
            "Steps were still getting faster or slower while the program was observed; the shares "
            "of the step may shift later."
        )
    if steps.growth is not None:
        yield _beware(
            "The step grows: fixes were compared at the same, early steps, and what treats the "
            "growth gains more later."
        )
    if steps.steps < _FEW_STEPS:
        yield _beware(
            f"Only {counted(steps.steps, 'step')} could be measured: the step time is an estimate."
        )
    if cost_us is not None and cost_us * 1e-6 > _COSTLY * steps.median_s:
        yield _beware(
            f"Observing a step costs {cost_us:.0f} us, a large part of the step itself: its shares "
            "are uncertain."
        )
    unknown = untold_wait(recording)
    if unknown and (data_wait_share(recording) or 0.0) >= _WAITED_FOR:
        yield _detail(unknown)


def _on_load(recording: Recording, is_told: bool) -> Iterator[Note]:
    """Yield what others did on the machine, and how much of the step's time may be theirs."""
    note = _detail if is_told else _beware
    load = load_of([recording.sensors], recording.environment.cpus)
    if load is None:
        return
    share = long_steps_share(recording.steps) if recording.steps is not None else 0.0
    theirs = (
        f" {share:.0%} of the time is what slow steps took beyond the median step, and those "
        "programs may have caused it."
    )
    yield note(
        f"Other programs kept {load} busy: speed-ups, above all of thread counts and workers, may "
        f"be those of a busy machine.{theirs if share >= _LARGE else ''} Measure on a quiet "
        "one before changing anything for good."
    )


def _on_launches(recording: Recording, trials: TrialResults) -> Iterator[Note]:
    """Yield what the observed launch read from a device, or had of another load, and later ones."""
    cold, steps = cold_mounts(recording) if trials.baselines else [], recording.steps
    if any(not mount.fits for mount in cold):
        yield _detail(
            "The files that training reads do not fit into the page cache. Before each later "
            "launch, the files of the observed launch were dropped from it, so that fixes were "
            "tried as in a training that always reads new files."
        )
    elif cold:
        yield _beware(
            "The observed launch read its files from the device, and later launches found them in "
            "the page cache: the diagnosis holds for the first epoch, the speed-ups for the "
            "epochs after it."
        )
    logs = [enumerate(launch.losses, 1) for launch in trials.baselines]
    broken = [n for log in logs for n, loss in log if loss is not None and not isfinite(loss)]
    if broken:
        yield _beware(
            "The loss of the untouched program is NaN or infinite from its backward pass "
            f"{broken[0]} on: fixes were compared by the losses before it."
        )
    times = [s for launch in trials.baselines for s in launch.step_s]
    if steps is None or not times or steps.mean_s <= 0 or any(mount.fits for mount in cold):
        return
    later_s = fmean(times)
    if not 1 / _OTHER_TIMES <= later_s / steps.mean_s <= _OTHER_TIMES:
        yield _beware(
            f"A step took {seconds(steps.mean_s)} on average during the diagnosis and "
            f"{seconds(later_s)} while fixes were tried: the machine's load changed, and perhaps "
            "the bottleneck with it. Run again on a quieter machine."
        )


def _on_noise(trials: TrialResults) -> Iterator[Note]:
    """Yield a note where the untouched program against itself is not 1."""
    noise = trials.noise_floor
    if noise and not (noise.low <= 1 <= noise.high and 0.8 <= noise.estimate <= 1.25):
        yield _beware(
            f"The untouched program differed from itself by {ratio(noise.estimate)}x: smaller "
            "differences cannot be seen here."
        )
