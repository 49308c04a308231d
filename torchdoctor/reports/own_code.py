"""Lines of the user's own code: what they cost, the most that can be gained, what to write."""

from collections.abc import Sequence, Set

from torchdoctor.advice import catalogue
from torchdoctor.queries.bounds import LARGEST_BOUND
from torchdoctor.queries.known_shapes import known_shapes
from torchdoctor.reports.document import Block, KeyFigures
from torchdoctor.reports.vocabulary import step_of
from torchdoctor.reports.wording import LONGEST_PLACE
from torchdoctor.schema import Evidence, Location, Report
from torchdoctor.schema.figures import clean, percent, place, ratio
from torchdoctor.schema.report import Finding

_MOST = 2
_HALF = 0.5
_LEAST = 0.05  # of the step, from where on a line is told
_NO_CURE = "no cure is known for this line"


def most_gain(share: float | None) -> str:
    """Return the most that a part of the step can give, as "5.6x at most"; "" of nearly all."""
    if not share or share >= 1 - 1 / LARGEST_BOUND:
        return ""
    return f"{ratio(1 / (1 - share))}x at most"


def most_gain_of_cause(report: Report) -> str:
    """Return the most that the part of the step named as the cause can give; empty: not known."""
    diagnosis = report.diagnosis
    shares = [
        finding.share_of_step
        for finding in diagnosis.findings
        if finding.check == diagnosis.detail and finding.share_of_step
    ]
    return most_gain(max(shares, default=None))


def advising_check(report: Report) -> str | None:
    """Return the check whose page says what to do about the cause: its own, or one that says more.

    Of two findings at one line, the one that tells more of its time knows what to write there.
    """
    diagnosis, checks = report.diagnosis, catalogue.checks()
    cause = diagnosis.explaining
    if diagnosis.detail is None or cause is None or cause.location is None:
        return diagnosis.detail

    def tells_more(finding: Finding) -> bool:
        check = checks.get(finding.check)
        specific = check is not None and check.question is None
        share = finding.share_of_step or 0.0
        at_cause = finding.location == cause.location
        return at_cause and specific and share > (cause.share_of_step or 0.0)

    more = [finding for finding in diagnosis.findings if tells_more(finding)]
    best = max(more, key=lambda finding: finding.share_of_step or 0.0, default=cause)
    check = checks.get(best.check)
    return best.check if check is not None and check.section("What to do") else diagnosis.detail


def to_do(report: Report) -> str:
    """Return what only the user can change about the cause; empty where no page says it.

    Nor where a fact that is told of the program itself says it.
    """
    check = catalogue.checks().get(advising_check(report) or "")
    cause = report.diagnosis.explaining
    if check is None or (cause is not None and _says_it(cause)):
        return ""
    first = check.section("What to do").partition(". ")[0].removesuffix(".")
    return f"{first}. More: torchdoctor explain {check.ident}" if first else ""


def _says_it(finding: Finding) -> bool:
    """Return True if a fact of a finding says what to do."""
    check = catalogue.checks().get(finding.check)
    return check is not None and any(
        evidence.fact in check.advises for evidence in finding.evidence
    )


def is_cured(report: Report) -> bool:
    """Return True if a recommended fix treats the cause, or the function that it is in.

    General advice would only mislead.
    """
    cause = report.diagnosis.explaining
    if cause is not None and function_of(cause.location) in _recommended_functions(report):
        return True
    fixes = catalogue.fixes()  # a report may name a fix of another version
    specs = [fixes[fix.fix] for fix in report.recommendation.fixes if fix.fix in fixes]
    causes = {report.diagnosis.detail, advising_check(report)}
    return any(not causes.isdisjoint(spec.treats) for spec in specs)


def function_of(location: Location | None) -> tuple[str, str] | None:
    """Return file and name of the function that a place is in; None: it is not known."""
    if location is None or location.function is None:
        return None
    return location.file, location.function


def _recommended_functions(report: Report) -> set[tuple[str, str]]:
    functions = (function_of(fix.location) for fix in report.recommendation.fixes)
    return {function for function in functions if function is not None}


def is_told(report: Report, location: Location | None) -> bool:
    """Return True if the screen says what to write at a place, or has a fix of its function."""
    places = [evidence.location for evidence in _told(report) if evidence.shape is not None]
    return location in places or function_of(location) in _recommended_functions(report)


def blocks(report: Report) -> list[Block]:
    """Return the lines with a known cure, and one of half of the step without any."""
    rows: dict[str, tuple[str, str]] = {}
    for finding in _told(report):
        at = place(finding.location, report.workload.cwd, LONGEST_PLACE)
        shape = known_shapes().get(finding.shape or "")
        cost = f"{percent(finding.share_of_step or 0.0)} of the {step_of(report)}"
        write = clean(shape.write) if shape is not None else _NO_CURE
        # What a forward pass spares, its backward pass spares as well: its share is no bound.
        inside = finding.location is not None and finding.location.function == "forward"
        spares_more = inside or (shape is not None and shape.spares_more)
        most = "" if spares_more else most_gain(finding.share_of_step)
        figures = ", ".join(filter(None, [cost, most]))
        about = f"{figures}   {write}"
        rows.setdefault(finding.shape or at, (at, about))
    shown = list(rows.values())[:_MOST]
    return [KeyFigures("IN YOUR CODE, not measured", "", shown)] if shown else []


def _told(report: Report) -> Sequence[Finding]:
    recommended = {fix.location for fix in report.recommendation.fixes if fix.location}
    cured = is_cured(report)
    tried = {name for trial in report.trials if trial.speedup for name in trial.fixes}
    findings = [
        finding
        for finding in report.diagnosis.findings
        if finding.location is not None
        and finding.location not in recommended
        and (finding.share_of_step or 0.0) >= _LEAST
        and (finding.shape or (not cured and _is_uncured(finding, tried, report)))
    ]
    checks = catalogue.checks()

    def rank(finding: Finding) -> tuple[bool, float]:
        # Of two findings at one shape the one of a whole branch bounds more than the line costs.
        check = checks.get(finding.check)
        return check is not None and check.question is not None, -(finding.share_of_step or 0.0)

    return sorted(findings, key=rank)


def _is_uncured(finding: Finding, tried: Set[str], report: Report) -> bool:
    """Return True for a function that holds half of the step, and of which no fix was tried.

    Nor where another finding in the same function says what to do there.
    """
    check = catalogue.checks().get(finding.check)
    is_function = check is not None and check.of_own_code
    is_large = (finding.share_of_step or 0.0) >= _HALF
    function = function_of(finding.location)
    inside = (
        finding
        for finding in report.diagnosis.findings
        if function_of(finding.location) == function
    )
    advised = function is not None and any(map(_is_advised, inside))
    return is_function and is_large and not advised and tried.isdisjoint(finding.fixes)


def _is_advised(finding: Finding) -> bool:
    """Return True if a finding says what to write in this function: its facts, or code for it."""
    check = catalogue.checks().get(finding.check)
    if check is None or check.question is not None or check.of_own_code:
        return False
    fixes = catalogue.fixes()
    tells_all = check.verdict == "all" or _says_it(finding)
    return tells_all or any(fixes[name].untried for name in finding.fixes if name in fixes)


def large_findings(report: Report, shown_facts: Sequence[Evidence]) -> list[str]:
    """Return sentences on severe findings of half of the step or more that nothing told yet."""
    sentences = []
    checks = catalogue.checks()
    for finding in report.diagnosis.findings:
        check = checks.get(finding.check)
        # The answer to a question of the tree is the first sentence, or would only repeat it.
        asked = check is None or check.question is not None
        large = finding.severity == "high" and (finding.share_of_step or 0.0) >= _HALF
        is_told = any(evidence is fact for evidence in finding.evidence for fact in shown_facts)
        if not large or asked or is_told or not finding.evidence:
            continue
        first = finding.evidence[0]
        sentence = clean(first.sentence)
        at = place(finding.location, report.workload.cwd, LONGEST_PLACE)
        if at and first.location is None:
            sentence = f"{sentence.removesuffix('.')} ({at})."
        sentences.append(sentence)
    return sentences[:1]
