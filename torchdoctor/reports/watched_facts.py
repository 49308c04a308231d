"""The sentences of a watched run's facts: what happened, what changed with it, and what to do."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from torchdoctor.reports import templates
from torchdoctor.reports.vocabulary import of_unit
from torchdoctor.schema import Evidence, Finding
from torchdoctor.schema.figures import clean
from torchdoctor.schema.watched import ExplainedFact, SlowStep, WatchSummary

_SHOWN = {
    "wait": ("waiting for data", "data_loader"),
    "copy": ("copies to the device", "memcpy"),
    "forward": ("forward", "gpu"),
    "backward": ("backward", "runtime"),
    "optimizer": ("optimizer", "cpu"),
    "evaluation": ("evaluation", "communication"),
    "checkpoint": ("checkpoints", "memset"),
    "gc": ("garbage collection", "other"),
    "other": ("other code", "other"),
}
PHASE_NAMES = {phase: name for phase, (name, _) in _SHOWN.items()}
PHASE_COLOURS = {phase: colour for phase, (_, colour) in _SHOWN.items()}  # of a bar's parts
_PROGRAMS = {  # what templates call a program; `fed`: what its loader feeds
    "training": {"program": "training", "Program": "Training", "fed": "training"},
    "inference": {"program": "inference", "Program": "Inference", "fed": "model"},
}
# `{why}` is the clause of what changed; `since` of an alert is the step that it began with.
_SINCE = "{unit} {step:,} ({since_s:clock})"
ALERTS = {
    "training-slower": "{Program} is {slower:ratio}x slower since " + _SINCE + ": [on rank {rank} ]"
    "{why}.",
    "evaluation-longer": "Each evaluation takes {seconds:seconds} since " + _SINCE + "[, before "
    "that {usual_s:seconds}]. Evaluate less often or on fewer batches, under "
    "torch.inference_mode().",
    "checkpoint-longer": "Each checkpoint takes {seconds:seconds} since " + _SINCE + "[, before "
    "that {usual_s:seconds}]. Write to a faster disk, less often, or in the background.",
    "memory-grows": "Memory grows by [{each_bytes:memory}][{each_kb:.3g} kB] a {unit} since "
    + _SINCE
    + " and will be full"
    "[ of {limit:memory}] at about {unit} {full_at:,.0f}, in {left_s:duration}. Look for tensors "
    "kept with their graph (use .item() or .detach()) and for lists that grow.",
    "loss-not-finite": "The loss is {loss} at " + _SINCE + ". Go back to a checkpoint, and look at "
    "the learning rate, float16 without a scaler, and this batch.",
    "loader-starves": "The loader[ (num_workers={workers})] starves the {fed}: {share:percent} "
    "of each {unit} since " + _SINCE + " is a wait for data. `torchdoctor report` tells the "
    "command that tries remedies.",
    "rank-dead": "Rank {rank} has given no sign of life since {sign_s:clock} ({unit} {step:,}): it "
    "was killed or has crashed, and the others wait for it. Look at its output, and in the "
    "kernel's log (dmesg) for lack of memory.",
    "rank-late": "Rank {rank} started {late_s:duration} after the others, at {since_s:clock}. Look "
    "at what {host} does before then.",
    "ranks-missing": "{missing:counted rank} of {world} ({ranks:list}[ and {more} more]) "
    "have not started {passed_s:duration} after the others. Look at their nodes, and at what the "
    "launcher prints.",
    "process-hangs": "No {unit} has ended for {passed_s:duration}, since "
    + _SINCE
    + ": the process "
    "is in {phase}. `py-spy dump --pid {pid}` on {host} tells the line.",
    "rank-hangs": "No {unit} has ended for {passed_s:duration}, since "
    + _SINCE
    + ": rank {rank} is "
    "in {phase}, and the others wait for it. `py-spy dump --pid {pid}` on {host} tells the "
    "line.",
    "rank-lags": "Rank {rank} lags: since " + _SINCE + " the others wait {share:percent} of each "
    "{unit} for it[: {why}]. Look at {host}, process {pid}.",
}
# Clauses: what changed with a slower training.
CAUSES = {
    "phase-grown": "{phase} has grown from {before_s:seconds} to {after_s:seconds} a {unit}",
    "nothing-else": "{phase} has grown from {before_s:seconds} to {after_s:seconds} a {unit}",
    "batches-grown": "batches have grown from {before:,.0f} to {after:,.0f} samples[, and a sample "
    "takes {each:.2f}x the time]",
    "inputs-grown": "the model's inputs have grown from {before:,.0f} to {after:,.0f} numbers a "
    "batch of the same number of samples",
    "new-shapes": "{share:percent} of the {units} bring a shape that the model never had, for "
    "which torch.compile compiles, and cuDNN searches, anew",
    "swaps": "memory is short, and pages come back from swap[ ({mb_per_s:.1f} MB/s)]",
    "files-read-again": "memory is short, and pages of files are read again and again",
    "gpu-clock-fallen": "the GPU's clock has fallen from {before:,.0f} to {after:,.0f} MHz",
    "cpu-clock-fallen": "the CPU's clock has fallen from {before:,.0f} to {after:,.0f} MHz",
    "gpu-shared": "another program computes on the same GPU",
    "cpus-shared": "other programs use {after:.1f} CPUs (before: {before:.1f}), which this one "
    "needs",
    "waits-for-ranks": "the wait for other ranks has grown from {before_s:seconds} to "
    "{after_s:seconds} a {unit}",
    "waits-for-cpu": "it waits {share:percent} of the time for a CPU that others use",
    "clock-lower": "its processor's clock is lower",
    "batches-larger": "its batches are larger",
}
# What to do about a change, by its fact; about a check's finding its page says it.
TODO = {
    "nothing-else": "Nothing else that torchdoctor measures has changed with it: look at your last "
    "changes.",
    "batches-grown": "If you did not mean this, look at the batch size of the loader.",
    "inputs-grown": "Group samples of similar length, or cut the longest ones.",
    "new-shapes": "Pad inputs to a few shapes, or use torch.compile(dynamic=True). "
    "TORCH_LOGS=recompiles tells more.",
    "swaps": "Give the job more memory, or use fewer workers or less caching.",
    "files-read-again": "Give the job more memory, or use fewer workers or less caching.",
    "gpu-clock-fallen": "Look at cooling, power limits and neighbours: nvidia-smi -q -d "
    "PERFORMANCE.",
    "cpu-clock-fallen": "Look at cooling, the power profile and other load.",
    "gpu-shared": "nvidia-smi names it; use another GPU or wait for it.",
    "cpus-shared": "`top -o %CPU` names them; stop or move them, or ask for CPUs of your own.",
    "waits-for-ranks": "Look at the slowest rank: `torchdoctor report` names it.",
}
_SEE = "`torchdoctor explain {check}` tells what to do."
SUMMARIES = {
    "ranks-wait": "The other ranks wait {share:percent} of {each_step} for rank {rank} (on {host})"
    "[: {why}].",
    "largest-cost": "The largest cost is {phase}[ ({location:place})]: {share:percent} of the "
    "time.",
    "most-to-save": "Most may be saved in {phase}[ ({location:place})]: {share:percent} of the "
    "time.",
    "program-ended": "The program ended at {at_s:moment}.",
    "program-broken-off": "Ctrl-C, a signal or a crash ended the program at {at_s:moment}.",
    "run-silent": "The run was killed: its last sign of life is of {at_s:moment}.",
    "watch-removed-itself": "After {steps:counted {unit}, {units}} the watch removed itself "
    "({error}), and the program went on: what came then is in no figure.",
    "steps-lost": "{lost:counted {unit}, {units}} ({seconds:duration}) could not be written to "
    "the log: they count in all numbers and rates, and their time is divided among the phases as "
    "that of the others.",
    "program-runs": "The program is running; this is what is known so far.",
    "no-step": "No training step was seen, nor calls of a model that tell what a step is. The "
    "steps can be marked by hand: torchdoctor.step().",
    "no-step-watched": "No training step was seen ({reason}).",
}
STEPS = {  # what a step is
    "step-loader": "A {unit} is one batch of the DataLoader[ at {location:place}].",
    "step-optimizer": "A {unit} is one step of the optimizer[ {name}].",
    "step-backward": "A {unit} is one backward pass.",
    "step-forward": "A {unit} is one call of the model[ {name}].",
    "step-entry": "A {unit} is one call of {name}.",
    "step-explicit": "A {unit} is one call of torchdoctor.step().",
    "no-gradient": "No gradient is computed.",
}
SENTENCES = {**ALERTS, **SUMMARIES, **STEPS}
_Explained = TypeVar("_Explained", bound=ExplainedFact)


def words_of(unit: str = "step", program: str = "training") -> dict[str, str]:
    """Return what templates call things; `unit`: a step; `program`: training or inference."""
    return {**of_unit(unit), **_PROGRAMS[program], "device": "GPU"}


def with_sentence(explained: _Explained) -> _Explained:
    """Return a fact of a watched run in words."""
    return replace(explained, sentence=sentence_of(explained))


def with_sentences(summary: WatchSummary) -> WatchSummary:
    """Return a summary whose facts of its end, and of what a step is, are in words too."""

    def told(evidence: Evidence) -> Evidence:
        return replace(evidence, sentence=of_fact(evidence, summary.unit, summary.cwd))

    return replace(
        summary, ending=list(map(told, summary.ending)), step=list(map(told, summary.step))
    )


def sentence_of(explained: ExplainedFact, cwd: str = "") -> str:
    """Return what happened, what explains it and what to do, in words."""
    words = words_of(explained.unit, explained.program)
    why = explained.why
    clause = None if why is None else _filled(CAUSES.get(why.fact), why, words)
    sentences = [
        _filled(SENTENCES.get(explained.fact.fact), explained.fact, words, cwd, why=clause)
    ]
    if explained.finding is not None:
        sentences += _found(explained.finding, words)
    if why is not None:
        sentences.append(TODO.get(why.fact, ""))
    return " ".join(filter(None, sentences))


def of_fact(evidence: Evidence, unit: str = "step", cwd: str = "") -> str:
    """Return a fact that nothing explains in words; `unit`: what a step is called."""
    return _filled(SENTENCES.get(evidence.fact), evidence, words_of(unit), cwd)


def clause_of(cause: Evidence, unit: str) -> str:
    """Return what changed, as a clause; `unit`: what a step is called."""
    return _filled(CAUSES.get(cause.fact), cause, words_of(unit))


def of_slow_step(slow: SlowStep) -> str:
    """Return what a slow step was slow by."""
    longest = templates.filled("{phase}, {s:seconds}", _phase(slow.phase) | {"s": slow.phase_s}, {})
    if slow.recompiled:
        return f"torch.compile compiled ({longest})"
    return f"a pass over the loader began ({longest})" if slow.pass_began else longest


def _found(finding: Finding, words: dict[str, str]) -> list[str]:
    """Return what a check found, in the words of its own."""
    from torchdoctor.reports.verdict import worded  # which reads the whole catalogue

    facts = worded(finding, words).evidence
    return [*(fact.sentence for fact in facts), _SEE.format(check=finding.check)]


def _filled(
    template: str | None,
    evidence: Evidence,
    words: Mapping[str, str],
    cwd: str = "",
    **more: str | None,
) -> str:
    """Return a fact in words; empty where it is one of another version."""
    if template is None:
        return clean(evidence.sentence)
    values = {**words, **evidence.values, **_phase(evidence.values.get("phase")), **more}
    values |= {"share": evidence.share, "location": evidence.location}
    return templates.filled(template, values, {}, cwd)


def _phase(name: str | None) -> dict[str, str]:
    return {} if name is None else {"phase": PHASE_NAMES.get(name, name)}
