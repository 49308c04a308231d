"""What torch.compile said of its own work in a trial, as sentences."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from torchdoctor.words import Trial
from torchdoctor.words.program import on_sizes

_NAMED = 3


def said(trial: Trial, cwd: str) -> list[str]:
    """Sentences on the time, the graph breaks and the recompilations; [] where none was compiled.

    Args:
        trial: of torch-compile alone; its details are those of the first launch.
        cwd: files below it are named by their path from there.
    """
    details = trial.details
    if "compile_s" not in details:
        return []
    graphs, breaks = details.get("graphs", 0), details.get("breaks") or []
    counted = "1 graph" if graphs == 1 else f"{graphs} graphs"
    sentences = [f"Compiling took {details['compile_s']:.3g} s for {counted}."]
    if breaks:
        places = "1 place" if len(breaks) == 1 else f"{len(breaks)} places"
        sentences.append(f"The graph breaks at {places}: {_named(breaks, cwd)}.")
    sentences += _recompiled(details, cwd)
    if trial.verdict in ("slower", "same"):
        sentences.append("It does not pay for itself: the steps are not faster.")
    return sentences


def _recompiled(details: Mapping[str, Any], cwd: str) -> list[str]:
    reasons, gave_up = details.get("recompile_reasons") or [], details.get("gave_up") or []
    at, passes = details.get("compiled_at") or [], details.get("passes", 0)
    times, sentences = details.get("recompiles", 0), []
    if reasons and times:
        row_of_steps = len(at) > _NAMED and at[-1] - at[0] + 1 <= 2 * len(at)
        often = "once" if times == 1 else f"{times} times"
        if row_of_steps:
            often += f" (in {len(at)} of the first {at[-1]} steps)"
        sentences.append(f"It compiled again {often}, because of {_named(reasons, cwd)}.")
    for one in gave_up[:_NAMED]:
        sentences.append(
            f"torch then gave up compiling {_relative(one['function'], cwd)} for new inputs, "
            f"and runs it as before ({one['reason']})."
        )
    if times and not details.get("dynamic") and _by_sizes(reasons):
        sentences.append("Sizes vary: dynamic=True or torch._dynamo.mark_dynamic suits them all.")
    if at and passes > 2 * _NAMED and at[-1] >= passes - 1:
        sentences.append("It was still compiling when its first launch ended.")
    return sentences


def _by_sizes(reasons: Sequence[Mapping[str, Any]]) -> bool:
    return any(on_sizes(row["reason"]) for row in reasons)


def _named(rows: Sequence[Mapping[str, Any]], cwd: str) -> str:
    """Reasons with the user's lines, the most frequent first."""
    texts = []
    for row in rows[:_NAMED]:
        reason = str(row["reason"]).rstrip(".")
        where = f" ({_relative(row['file'], cwd)}:{row['line']})" if row.get("file") else ""
        texts.append(reason + where)
    more = len(rows) - _NAMED
    return "; ".join(texts) + (f"; and {more} more" if more > 0 else "")


def _relative(text: str, cwd: str) -> str:
    return text.replace(cwd.rstrip(os.sep) + os.sep, "")
