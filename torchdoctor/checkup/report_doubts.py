"""What makes a report weaker than it looks: everything the user should know before believing it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean

from torchdoctor.advice.source_patch import SourcePatch
from torchdoctor.advice.wording import wording
from torchdoctor.facts.fetch_time import untold_wait
from torchdoctor.facts.lookup import data_wait_share, is_first_look, long_steps_share
from torchdoctor.facts.other_load import load_of
from torchdoctor.facts.slow_reads import cold_mounts
from torchdoctor.trials.outcome import TrialResults
from torchdoctor.trials.patch_trial import disagreement
from torchdoctor.words import RecommendedFix, Recording
from torchdoctor.words.figures import ratio, seconds, speedup
from torchdoctor.words.specs import FixSpec

_MUCH_OF_IT = 0.3  # of the step
_COSTLY = 0.2  # of a step, for observing it
_UNLIKE_ITSELF = (0.8, 1.25)  # the untouched program against itself, as a speed-up
_WAITED_FOR = 0.05  # of a step; the loader's checks ask the same
_OTHER_TIMES = 1.5  # the observed step against that of the trials' launches, either way


def all_doubts(
    recording: Recording, trials: TrialResults | None, patch: SourcePatch | None
) -> list[str]:
    """Of the recording, of the trials' launches against it, and of the patch."""
    return [
        *_of_the_recording(recording),
        *_of_changed_times(recording, trials),
        *_of_cold_files(recording, trials),
        *_of_the_noise(trials),
        *_of_the_patch(trials, patch),
    ]


def doubts_of_fixes(
    idents: Iterable[str], recording: Recording, fixes: Mapping[str, FixSpec]
) -> list[str]:
    """What may go wrong where fixes are used that the report tells of, each once."""
    doubts = [fixes[ident].doubt(recording) for ident in idents if ident in fixes]
    return list(dict.fromkeys(doubt for doubt in doubts if doubt is not None))


def doubts_of_wording(
    shown: Iterable[RecommendedFix], recording: Recording, fixes: Mapping[str, FixSpec]
) -> list[str]:
    """Return a sentence for each part of a shown fix that the fix failed to word."""
    return [
        sentence
        for fix in shown
        if fix.fix in fixes
        for sentence in wording(fixes[fix.fix], fix.settings, recording).failures
    ]


def _of_changed_times(recording: Recording, trials: TrialResults | None) -> list[str]:
    """The shares come from one launch and the speed-ups from others."""
    steps = recording.steps
    times = [s for one in trials.baselines for s in one.step_s] if trials else []
    if steps is None or not times or steps.mean_s <= 0:
        return []
    later_s = fmean(times)
    if 1 / _OTHER_TIMES <= later_s / steps.mean_s <= _OTHER_TIMES:
        return []
    if any(one.fits for one in cold_mounts(recording)):
        return []  # said of the files
    return [
        f"A step took {seconds(steps.mean_s)} on average while it was diagnosed and "
        f"{seconds(later_s)} while fixes were tried: the load of the machine changed, and with "
        "it perhaps what limits the program. Run it again on a quieter machine."
    ]


def _of_cold_files(recording: Recording, trials: TrialResults | None) -> list[str]:
    """What the observing launch read from a device, and the launches after it may not."""
    cold = cold_mounts(recording) if trials and trials.baselines else []
    if any(not one.fits for one in cold):
        return [
            "The files that training reads do not fit into the page cache: those that the "
            "observed launch read were dropped from it before each launch after it, so that fixes "
            "were tried as in a training that always reads new ones."
        ]
    if cold:
        return [
            "The observed launch read its files from the device and the launches after it found "
            "them in the page cache: the diagnosis is that of a first epoch, the speed-ups are "
            "those of the epochs after it."
        ]
    return []


def _of_the_noise(trials: TrialResults | None) -> list[str]:
    """The untouched program against itself, where that is far from 1 or open."""
    noise = trials.noise_floor if trials else None
    if noise is None or noise.low > 1 or noise.high < 1:
        return []  # that it excludes 1 is a doubt of the trials
    low, high = _UNLIKE_ITSELF
    if not low <= noise.estimate <= high:
        return [
            f"The untouched program differed from itself by {ratio(noise.estimate)}x: nothing "
            "smaller can be seen here."
        ]
    if noise.low < low and noise.high > high:
        return [
            f"How far the untouched program differs from itself is open ({speedup(noise)}): small "
            "differences cannot be seen here."
        ]
    return []


def _of_the_recording(recording: Recording) -> list[str]:
    """The run's doubts, each once, and what the probe itself could not do."""
    doubts = list(dict.fromkeys(recording.doubts))
    errors = [error for process in recording.processes for error in process.probe_errors]
    if errors:
        doubts.append(
            f"The probe failed in {len(errors)} places and left them out; the first: {errors[0]}."
        )
    steps = recording.steps
    if steps is not None and steps.still_warming:
        doubts.append(
            "Steps were still getting faster or slower while the program was observed; the shares "
            "of the step may shift later in training."
        )
    if steps is not None and is_first_look(steps):
        doubts.append(f"Only {steps.steps} steps could be measured: their times are a first look.")
    cost_us = recording.main.probe_cost_us_per_step
    if steps is not None and cost_us is not None and cost_us * 1e-6 > _COSTLY * steps.median_s:
        doubts.append(
            f"A step takes hardly longer than observing it ({cost_us:.0f} us): its parts are not "
            "known well."
        )
    doubts += _of_the_load(recording)
    if said := _unknown_wait(recording):
        doubts.append(said)
    if recording.environment.sandbox == "none":
        doubts.append("No sandbox: each launch wrote to your own files.")
    return doubts


def _of_the_load(recording: Recording) -> list[str]:
    """What others did on the machine, and how much of the step's time may be theirs."""
    load = load_of([recording.sensors], recording.environment.cpus)
    if load is None:
        return []
    steps, long = recording.steps, ""
    if steps is not None and (share := long_steps_share(steps)) >= _MUCH_OF_IT:
        long = (
            f" {share:.0%} of the time lies in what single steps took beyond the median one, so "
            "where it goes may be theirs too."
        )
    return [
        f"Other programs kept {load} busy: speed-ups, above all of thread counts and workers, may "
        f"be those of a busy machine.{long} Measure on a quiet one before changing anything for "
        "good."
    ]


def _unknown_wait(recording: Recording) -> str | None:
    """Of a loader that the step waits for."""
    share = data_wait_share(recording)
    return untold_wait(recording) if share is not None and share >= _WAITED_FOR else None


def _of_the_patch(trials: TrialResults | None, patch: SourcePatch | None) -> list[str]:
    """What keeps the patch from being what was measured at run time."""
    found = []
    if patch is not None and patch.left_out:
        found.append(
            f"The patch lacks {', '.join(patch.left_out)}: no edit can be made with certainty, so "
            "its own figure is without it."
        )
    if trials is not None and trials.patch is not None and not (patch and patch.left_out):
        said = disagreement(trials.recommendation.speedup, trials.patch.speedup)
        found += [said] if said else []
    if trials is not None and trials.patch is not None and trials.patch.numerics == "changed":
        found.append(f"The patched program trains differently: {trials.patch.numerics_reason}")
    return found
