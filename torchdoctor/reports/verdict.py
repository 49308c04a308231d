"""The sentences of a diagnosis: its verdict and the facts that it rests on, made of data alone."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torchdoctor.advice import catalogue
from torchdoctor.reports import remarks, steps_found, templates, trial_facts
from torchdoctor.reports.vocabulary import of_verdict, vocabulary
from torchdoctor.schema import (
    Diagnosis,
    Evidence,
    Finding,
    Location,
    Quote,
    Remark,
    Removal,
    ReplayedGain,
    Report,
    TraceStatistics,
    Verdict,
    VerdictPart,
)
from torchdoctor.schema.figures import certain_speedup, percent

# By `Verdict.kind`. Kinds that are not here have no text of their own.
_KINDS = {
    "data_loader": "{Program} waits for data {share:.0%} of {each_step}",
    "memcpy": "Memory copies hold up {share:.0%} of {each_step}",
    "communication": "Communication between devices takes {share:.0%} of {each_step}",
    "gpu": "The {device} computes {share:.0%} of {each_step}: it is the limit",
    "gpu_hidden": "The {device} computes {share:.0%} of {each_step}",
    "gpu_partly": "The {device} computes {share:.0%} of {each_step}, and waits in the rest",
    "cpu": "The {device} waits for the host, which takes {share:.0%} of {each_step}",
    "cpu_only": "The CPU is the limit: it computes {share:.0%} of {each_step}",
    "cpu_beside": "The CPU computes {share:.0%} of {each_step}",
    "other": "{share:.0%} of {each_step} is spent outside data loading, copies and computation",
    "ranks_wait": "The ranks wait for each other: rank {rank} waits for the others {waits:.0%} of "
    "{each_step}, and communicates {exchange:.0%} of it",
    "none": "No part of {the_step} stands out",
    "not_measured": "Nothing was measured",
    "no_time": "The events of the trace have no durations, so where the time goes is unknown",
}
_PARTS = {
    "copies": "{share} the copies themselves",
    "blocked": "{share} the host blocked in copy calls",
    "operators": "{share} operators and Python",
    "driver": "{share} driver calls",
}
_REST = (
    "So the time of a step is unknown: record more steps, after some of warm-up.",
    "The rest of the recording takes {seconds:seconds}.",
)
_LATEST = (
    "The ranks wait for rank {rank}, which comes last to {last_share:.0%} of the collectives: rank "
    "{waiting_rank} waits {waiting_share:.0%} of its step."
)
_REPLAYED = {
    "data_loader": "the wait for data",
    "memcpy": "copies",
    "communication": "communication",
    "gpu": "the {device}'s kernels",
    "cpu": "the host's operators, Python and launches",
    "runtime": "other driver calls",
}
_UNSEEN = (
    "The device waits {unseen_share:.0%} of {each_step} for what is not in the trace, such as "
    "other ranks."
)
_FEW_EVENTS = "Only {few_events} events were recorded, so what follows is a hint and no verdict."
_FACTS = {  # those of no check
    "ended-early": "The program ended after {steps:counted whole step}, too few to tell what slows "
    "it down: let it run for 30 steps or more (by its options or with more data).",
    "device-unseen": "The host launched work on a device that was not recorded. Whether the host "
    "waited for it or computed is unknown: record with ProfilerActivity.CUDA (or the device's own "
    "activity).",
    "mostly-start-up": "Almost nothing can be told: {start_up_s:seconds} of the {whole_s:seconds} "
    "recorded are the {device}'s start-up, and what follows is {kept_s:seconds} ({share:percent}). "
    "Record more steps, after some of warm-up.",
    "capturing-graphs": "The program captures graphs {part:.0%} of the time: what it launches "
    "there does not run, and is captured once. Record steps that come after it.",
    "start-up-mostly": "Much of the window is the start-up of the GPU, and little work follows it. "
    "What takes the time of a step cannot be told: record more steps, after some of warm-up.",
    "cut-before-device": "The file was cut off or damaged before its GPU events, which the "
    "profiler writes after the host's: what the GPU did is unknown. Record or copy the trace "
    "again.",
    "cut-within-device": "{part:.0%} of what the steps launched shows no kernel: GPU events lie in "
    "the part of the file that is missing, so GPU time is too low. Record or copy the trace again.",
    "kernels-missing": "{missing} of {launches} kernel launches in the steps show no kernel: what "
    "ran on the GPU was not recorded (an older profiler records nothing in CUDA graphs), so GPU "
    "time is unknown.",
    "earlier-work": "The window begins in the middle of earlier work: {call} waits "
    "{seconds:seconds} ({part:.0%} of what was recorded) for what was launched before, which the "
    "trace does not show.",
    "start-up-within": "The GPU's start-up lies in the window: {call} holds the host "
    "{seconds:seconds} ({part:.0%} of each step) while the GPU does nothing, as when code is "
    "loaded.",
    "operator-on-host": "{name} computes on the CPU, {seconds:seconds} in {each_step}.",
    "python-on-host": "The host is in {function} at {location:place}.",
}


@dataclass(frozen=True, kw_only=True)
class Statement:
    """One sentence of the verdict, with what it states."""

    sentence: str
    place: Location | None = None  # of what it is about, where the sentence does not name it
    names_place: bool = False  # the sentence names one
    shares: tuple[float, ...] = ()  # that it states


def with_sentences(report: Report) -> Report:
    """Return the report with its verdict and all facts of its findings in words."""
    words = vocabulary(report)
    cwd = report.workload.cwd
    diagnosis = report.diagnosis
    verdict = diagnosis.verdict
    findings = [worded(finding, words, cwd) for finding in diagnosis.findings]
    why = verdict.why
    rest = verdict.rest
    verdict = replace(
        verdict,
        facts=[_told(None, evidence, words, cwd) for evidence in verdict.facts],
        why=why and _told(None, why, words, cwd),
        rest=rest and replace(rest, why=_told(None, rest.why, words, cwd)),
    )
    path = [
        replace(question, metric=question.metric.format_map(words)) for question in diagnosis.path
    ]
    worded_diagnosis = replace(diagnosis, path=path, findings=findings, verdict=verdict)
    report = replace(report, trace=report.trace and _traced(report.trace, words, cwd))
    report = _with_failure(_with_steps(report, cwd), words, cwd)
    report = trial_facts.with_reasons(_with_remarks(report, words, cwd), words, cwd)
    whole = statements(replace(report, diagnosis=worded_diagnosis))
    sentence = " ".join(statement.sentence for statement in whole)
    return replace(report, diagnosis=replace(worded_diagnosis, sentence=sentence))


def worded(finding: Finding, words: dict[str, str], cwd: str = "") -> Finding:
    """Return a finding with its facts in words."""
    facts = [_told(finding.check, evidence, words, cwd) for evidence in finding.evidence]
    return replace(finding, evidence=facts)


def _with_steps(report: Report, cwd: str) -> Report:
    """Return the report with the sentence on how its steps were found."""
    steps = report.steps
    if steps is None or steps.evidence is None:
        return report
    return replace(
        report, steps=replace(steps, how_found=steps_found.how_found(steps.evidence, cwd))
    )


def _with_failure(report: Report, words: dict[str, str], cwd: str) -> Report:
    """Return the report with what the program's failure may have to do with in words."""
    failure = report.failure
    if failure is None:
        return report
    besides = [_told(None, evidence, words, cwd) for evidence in failure.besides]
    return replace(report, failure=replace(failure, besides=besides))


def _with_remarks(report: Report, words: dict[str, str], cwd: str) -> Report:
    """Return the report with its remarks in words, which are its doubts; each once."""
    if not report.remarks:
        return report
    worded_remarks = [_remark(remark, words, cwd) for remark in report.remarks]
    worded_remarks = list({remark.sentence: remark for remark in worded_remarks}.values())
    return replace(
        report,
        remarks=worded_remarks,
        doubts=[remark.sentence for remark in worded_remarks],
        beware=[remark.sentence for remark in worded_remarks if remark.severity == "beware"],
    )


def _remark(remark: Remark, words: dict[str, str], cwd: str) -> Remark:
    """Return a remark with its sentence, which begins with the trace that it is of."""
    text = template(None, remark.fact)
    return remark if text is None else remarks.filled(remark, text, words, cwd)


def trace_doubts(trace: TraceStatistics) -> list[Evidence]:
    """Return what a reader must know of a trace: why the device's part is missing, and doubts."""
    missing = trace.device_missing
    facts = trace.doubts if missing is None else [missing, *trace.doubts]
    return [_told(None, fact, {}, "") for fact in facts]


def _traced(trace: TraceStatistics, words: dict[str, str], cwd: str) -> TraceStatistics:
    """Return the figures of a trace with its facts in words."""
    missing = trace.device_missing
    unusual = trace.unusual
    replay = trace.what_if
    if replay is not None:
        replay = replace(replay, doubts=[_told(None, doubt, words, cwd) for doubt in replay.doubts])
    return replace(
        trace,
        doubts=[_told(None, doubt, words, cwd) for doubt in trace.doubts],
        what_if=replay,
        device_missing=missing and _told(None, missing, words, cwd),
        unusual=unusual and _told(None, unusual, words, cwd),
    )


def template(check: str | None, fact: str) -> str | None:
    """Return the template of a check's fact, or of one of no check; None: it has none."""
    if check is None:
        texts = (_FACTS, remarks.SENTENCES, trial_facts.SENTENCES, steps_found.SENTENCES)
        return next((templates[fact] for templates in texts if fact in templates), None)
    spec = catalogue.checks().get(check)
    return spec.sentences.get(fact) if spec is not None else None


def _told(check: str | None, evidence: Evidence, words: dict[str, str], cwd: str) -> Evidence:
    """Return a fact with its sentence."""
    text = template(check, evidence.fact)
    if text is None:
        return evidence
    spec = catalogue.checks().get(check) if check is not None else None
    values = {
        **words,
        **evidence.values,
        "share": evidence.share,
        "location": evidence.location,
    }
    items = spec.sentences if spec is not None else _FACTS
    return replace(evidence, sentence=templates.filled(text, values, items, cwd))


def statements(report: Report) -> list[Statement]:
    """Return the verdict sentence by sentence."""
    diagnosis = report.diagnosis
    whole = Statement(sentence=diagnosis.sentence, place=diagnosis.verdict.place)
    if diagnosis.verdict.kind == "earlier":
        return [whole]
    try:
        return _statements(report) or [whole]
    except (KeyError, TypeError, ValueError):  # a verdict of another version, or edited by hand
        return [whole]


def _statements(report: Report) -> list[Statement]:
    diagnosis = report.diagnosis
    words = vocabulary(report)
    verdict = diagnosis.verdict
    facts = [_statement(evidence) for evidence in verdict.facts]
    answer = [*_beside(diagnosis), *_main(verdict, of_verdict(report)), *_proof(diagnosis), *facts]
    closing = _of_quotes(diagnosis, verdict.closing)
    if verdict.latest is not None and answer:
        of_rank = f"On rank {verdict.latest.rank}: {answer[0].sentence}"
        answer[0] = replace(answer[0], sentence=of_rank)
    return [
        *_opening(diagnosis, words),
        *_before(verdict, words),
        *_limit(verdict, words),
        *answer,
        *closing,
        *_removal(verdict.experiment, words),
        *_replayed(verdict.replay, words),
    ]


def quoted(diagnosis: Diagnosis) -> list[Evidence]:
    """Return the facts of findings that the verdict repeats."""
    verdict = diagnosis.verdict
    proof = [verdict.proof] if verdict.proof is not None else []
    quotes = [*verdict.opening, *verdict.beside, *proof, *verdict.closing]
    return [fact for quote in quotes for fact in _quoted(diagnosis, quote)[1]]


def _quoted(diagnosis: Diagnosis, quote: Quote) -> tuple[Finding | None, list[Evidence]]:
    """Return the finding that a quote is of, and the facts that it repeats."""
    finding = next(
        (finding for finding in diagnosis.findings if finding.check == quote.check), None
    )
    facts = []
    named = list(quote.facts)
    for fact in finding.evidence if finding is not None else []:
        if fact.fact in named:  # a name that is quoted once is that of the first such fact
            named.remove(fact.fact)
            facts.append(fact)
    return finding, facts


def _statement(evidence: Evidence, place: Location | None = None) -> Statement:
    names_place = evidence.location is not None
    return Statement(
        sentence=evidence.sentence,
        place=None if names_place else place,
        names_place=names_place,
        shares=() if evidence.share is None else (evidence.share,),
    )


def _plain(text: str, words: dict[str, str], **values: object) -> str:
    return templates.filled(text, {**words, **values}, {})


def _opening(diagnosis: Diagnosis, words: dict[str, str]) -> list[Statement]:
    """Return what must be known first of all: that it is a hint, and findings without a share."""
    few = diagnosis.verdict.few_events
    hint = Statement(sentence=_plain(_FEW_EVENTS, words, few_events=few))
    findings = _of_quotes(diagnosis, diagnosis.verdict.opening)
    return [*([hint] if few is not None else []), *findings]


def _of_quotes(diagnosis: Diagnosis, quotes: Sequence[Quote]) -> list[Statement]:
    """Return the facts of findings, the first of each with the finding's place."""
    quoted_statements: list[Statement] = []
    for quote in quotes:
        finding, facts = _quoted(diagnosis, quote)
        place = finding.location if finding is not None else None
        quoted_statements += [
            _statement(fact, None if number else place) for number, fact in enumerate(facts)
        ]
    return quoted_statements


def _before(verdict: Verdict, words: dict[str, str]) -> list[Statement]:
    """Return what must be known before the verdict: of what it is, and who waits for it."""
    preliminaries: list[Statement] = []
    replay = verdict.replay
    latest = verdict.latest
    rest = verdict.rest
    if replay is not None and replay.unseen_share is not None:
        unseen = _plain(_UNSEEN, words, unseen_share=replay.unseen_share)
        preliminaries.append(Statement(sentence=unseen, shares=(replay.unseen_share,)))
    if latest is not None:
        preliminaries.append(Statement(sentence=_plain(_LATEST, words, **vars(latest))))
    if rest is not None:
        preliminaries.append(_statement(rest.why))
        preliminaries += [
            Statement(sentence=_plain(text, words, seconds=rest.seconds)) for text in _REST
        ]
    return preliminaries


def _beside(diagnosis: Diagnosis) -> list[Statement]:
    """Return the facts of larger findings; the place of the verdict is that of the first one."""
    larger_facts: list[Statement] = []
    for quote in diagnosis.verdict.beside:
        _, facts = _quoted(diagnosis, quote)
        larger_facts += [
            _statement(fact, None if larger_facts else diagnosis.verdict.place) for fact in facts
        ]
    return larger_facts


def _main(verdict: Verdict, words: dict[str, str]) -> list[Statement]:
    """Return the sentence of the verdict's kind; none where its proof says all."""
    if verdict.why is not None:
        return [_statement(verdict.why, verdict.place)]
    replay = verdict.replay
    denied = replay is not None and (replay.hidden or replay.is_limit)
    kind = "gpu_hidden" if verdict.kind == "gpu" and denied else verdict.kind
    text = _KINDS.get(kind)
    if text is None:
        return []
    parts = {part.name: part.share for part in verdict.parts}
    sentence = _plain(text, words, share=verdict.share, rank=verdict.rank, **parts)
    shares = [verdict.share, *parts.values()]
    is_placed_before = bool(verdict.beside) or (replay is not None and replay.is_limit)
    but = _but(replay, words) if replay is not None and replay.is_limit else ""
    return [
        Statement(
            sentence=f"{sentence}{_parts(verdict.parts)}{but}.",
            place=None if is_placed_before else verdict.place,
            shares=tuple(share for share in shares if share is not None),
        )
    ]


def _parts(parts: Sequence[VerdictPart]) -> str:
    phrases = [
        _PARTS[part.name].format(share=percent(part.share).replace(" ", ""))
        for part in parts
        if part.name in _PARTS
    ]
    return f": {', '.join(phrases)}" if phrases else ""


def _proof(diagnosis: Diagnosis) -> list[Statement]:
    verdict = diagnosis.verdict
    if verdict.proof is None:
        return []
    finding, facts = _quoted(diagnosis, verdict.proof)
    place = finding.location if finding is not None else None
    said_before = place == verdict.place and verdict.kind != "finding"
    first_place = None if said_before else place
    return [_statement(fact, None if number else first_place) for number, fact in enumerate(facts)]


def _removal(experiment: Removal | None, words: dict[str, str]) -> list[Statement]:
    if experiment is None:
        return []
    removed = experiment.removed
    gained = certain_speedup(experiment.speedup)
    sentences = []
    if experiment.outcome != "gain":
        sentences.append(f"Without {removed} {words['a_step']} takes as long ({gained}).")
    elif experiment.limit is not None:  # else it stands among the upper bounds
        sentences.append(f"Without {removed} the program was {gained} as fast.")
    if experiment.outcome == "hidden":
        sentences.append("Other work hides this cost, so it is not the bottleneck.")
    if experiment.limit is not None and experiment.limit_speedup is not None:
        faster = certain_speedup(experiment.limit_speedup)
        limit = f"The limit is {experiment.limit}"
        sentences.append(f"{limit}: without that, the program was {faster} as fast.")
    return [Statement(sentence=text) for text in sentences]


def _limit(verdict: Verdict, words: dict[str, str]) -> list[Statement]:
    """Return what the limit is by replay, where that is not what takes the largest share."""
    replay = verdict.replay
    if replay is None or not replay.is_limit or replay.best is None:
        return []
    best = _plain(_REPLAYED[replay.best], words)
    sentence = (
        f"What limits {words['the_step']} is {best}: by replay of the trace (a model), it would be "
        f"{replay.best_speedup:.2f}x as fast without{_slowed(replay)}."
    )
    return [Statement(sentence=sentence, place=verdict.place)]


def _but(replay: ReplayedGain, words: dict[str, str]) -> str:
    without = _plain(_REPLAYED[replay.branch], words)
    return f", but it would be only {replay.speedup:.2f}x as fast without {without}"


def _slowed(replay: ReplayedGain) -> str:
    return ", or less, as the profiler slows the host down" if replay.profiler_slows else ""


def _replayed(replay: ReplayedGain | None, words: dict[str, str]) -> list[Statement]:
    """Return what a replay of the trace without the bottleneck gives, and without another cost."""
    if replay is None or replay.is_limit:
        return []
    without = _plain(_REPLAYED[replay.branch], words)
    only = ""
    why = ""
    if replay.hidden:
        waits_for_unseen = replay.unseen_share is not None
        only = "only "
        why = ": it would wait all the same" if waits_for_unseen else ": other work hides this cost"
    sentences = [
        f"By replay of the trace (a model), {words['the_step']} would be "
        f"{only}{replay.speedup:.2f}x as fast without {without}{why}."
    ]
    if replay.best is not None:
        best = _plain(_REPLAYED[replay.best], words)
        gain = f"{replay.best_speedup:.2f}x as fast{_slowed(replay)}"
        sentences.append(f"Without {best} it would be {gain}.")
    return [Statement(sentence=text) for text in sentences]
