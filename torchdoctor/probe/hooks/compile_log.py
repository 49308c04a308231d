"""The work of torch.compile: its time, where graphs broke, why it compiled again.

Read from torch's own counters, which differ from version to version: what one lacks is left out.
"""

import logging
import os
import re
import sys
import time
from collections import Counter

from .. import places

_MOST = 8  # rows of each kind
_LONGEST = 200  # characters of a reason
_COMPILE_ID = re.compile(r"^\d+/\d+(_\d+)?: ")
_GUARDED_AT = re.compile(r"  # .*?  # (\S+\.py):(\d+) in ")
_RESUMED = re.compile(r"torch_dynamo_resume_in_(.+)_at_\d+$")  # what follows a graph break
_VALUES = re.compile(r"(== |expected |actual )-?[\d.]+")
_PLACE = re.compile(r"\((.*):\d+\)")
_GIVEN_UP = re.compile(r"torch\._dynamo hit config\.(?s:.*)function: (.*)\n\s*last reason: (.*)")
_UNTOLD = (AttributeError, KeyError, TypeError, ValueError, IndexError)  # of another torch


class CompileLog(logging.Handler):
    """Counts what has been compiled since it was made; nothing of torchdoctor's own files."""

    def __init__(self, torch):
        super().__init__(level=logging.WARNING)
        self._torch = torch
        self._own = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
        self._graphs = 0
        self.passes = 0  # backward passes so far
        self._due = False  # a backward's own graph is compiled within the pass after the change
        self._compiled_at = []  # backward passes after which there were more graphs than before
        self.gave_up = []  # functions that are no longer compiled again, with torch's reason
        logging.getLogger("torch._dynamo.convert_frame").addHandler(self)

    def emit(self, record):
        """Take in a warning of dynamo's."""
        try:
            match = _GIVEN_UP.search(record.getMessage())
        except Exception:
            return  # a message that reads otherwise is no failure of the program's
        place = _PLACE.search(match[1]) if match else None
        if place and places.is_ours(place[1]):
            return
        if match and len(self.gave_up) < _MOST:
            row = {"function": match[1].strip(), "reason": _plain(match[2])}
            if row not in self.gave_up:
                self.gave_up.append(row)

    def changed(self):
        """Note that a backward pass begins; return True if there is more to tell than before it."""
        self.passes += 1
        try:
            graphs = self._torch._dynamo.utils.counters["stats"]["unique_graphs"]
        except _UNTOLD:
            return False
        if graphs == self._graphs:
            due, self._due = self._due, False
            return due
        self._graphs = graphs
        self._due = True
        if len(self._compiled_at) < 2 * _MOST:
            self._compiled_at.append(self.passes)
        return True

    def details(self):
        """Return all of it as plain data: the fix torch-compile says what is made of it."""
        details = {"passes": self.passes, "compiled_at": list(self._compiled_at)}
        for part in (self._counted, self._timed, self._breaks, self._recompiled):
            try:
                details.update(part(self._torch._dynamo.utils))
            except _UNTOLD:
                pass
        if self.gave_up:
            details["gave_up"] = list(self.gave_up)
        return details

    def _counted(self, utils):
        breaks = utils.counters["graph_break"]
        graphs = utils.counters["stats"]["unique_graphs"]
        own_graphs = sum(
            bool(getattr(each, "graph_op_count", 0)) for each in self._own_frames(utils)
        )
        own_breaks = sum(map(_breaks_us, utils.graph_break_reasons))
        return {
            "graph_breaks": max(sum(breaks.values()) - own_breaks, 0),
            "graphs": max(int(graphs) - own_graphs, 0),
        }

    def _own_frames(self, utils):
        """Return what dynamo tells of frames of ours: none, where a torch lets them be marked."""
        return [each for each in utils.get_compilation_metrics() if _is_ours(each)]

    def _timed(self, utils):
        spent = utils.calculate_time_spent()
        if "total_wall_time" in spent:
            total = spent["total_wall_time"]
        else:  # torch 2.4: frames and, outside of them, what inductor did for backward
            outside = spent.get("inductor_compile", 0) - spent.get("backend_compile", 0)
            total = spent["entire_frame_compile"] + max(0, outside)
        total -= sum(map(_took_s, self._own_frames(utils)))
        return {"compile_s": round(max(float(total), 0.0), 3)}

    def _breaks(self, utils):
        counts = Counter()
        for graph_break in utils.graph_break_reasons:
            if _breaks_us(graph_break):
                continue
            # Below the program's line there may be a wrapper of ours, that it went through.
            frames = [
                f
                for f in graph_break.user_stack
                if not f.filename.startswith(self._own) and not places.is_ours(f.filename)
            ]
            file, line = (frames[-1].filename, frames[-1].lineno) if frames else (None, None)
            counts[_plain(graph_break.reason), file, line] += 1
        rows = [
            {"reason": reason, "file": file, "line": line, "count": count}
            for (reason, file, line), count in counts.most_common(_MOST)
        ]
        return {"breaks": rows}

    def _recompiled(self, utils):
        """Return functions that were compiled for other inputs again, with what had changed."""
        counts = Counter()
        examples = {}
        for code, reasons in utils.guard_failures.items():
            if places.is_ours(code.co_filename):
                continue
            resumed = _RESUMED.match(code.co_name)
            function = resumed[1] if resumed else code.co_name
            # Each time, every earlier version says why it did not fit: counts only rank.
            for reason in reasons:
                text, (file, line) = _plain(reason), _guarded_at(reason, code)
                key = _VALUES.sub(r"\1*", text), function, file, line
                counts[key] += 1
                examples[key] = {"reason": text, "function": function, "file": file, "line": line}
        rows = [{**examples[key], "count": count} for key, count in counts.most_common(_MOST)]
        metrics = utils.get_compilation_metrics()
        total = sum(_is_further(each) for each in metrics if not _is_ours(each))
        return {"recompiles": total, "recompile_reasons": rows}

    def later(self, since_unix_s):
        """Return what further versions cost since then; {} where this torch does not tell."""
        versions = Counter()
        further = set()
        seconds = 0.0
        try:
            for metrics in self._torch._dynamo.utils.get_compilation_metrics():
                if _is_ours(metrics):
                    continue
                again, name = _is_further(metrics), getattr(metrics, "co_name", None)
                version = getattr(metrics, "compile_id", None) and str(metrics.compile_id)
                if again:
                    further.add(version)
                elif name is None:  # a backward graph: of a further version where its forward is
                    again = version is not None and version in further
                if again and metrics.start_time >= since_unix_s:
                    seconds += _took_s(metrics)
                    if name:
                        versions[name, metrics.co_filename, metrics.co_firstlineno] += 1
        except _UNTOLD:
            versions, seconds = Counter(), 0.0
        watched_s = max(time.time() - since_unix_s, 0.0)
        return {
            "watched_s": round(watched_s, 3),
            "later_recompiles": sum(versions.values()),
            "later_most": max(versions.values(), default=0),
            "later_s": round(min(seconds, watched_s), 3),
        }


def _is_further(metrics):
    """Return True for a further version of what was compiled before."""
    return (getattr(metrics, "cache_size", None) or 0) > 0


def _is_ours(metrics):
    """Return True for a frame of a file of ours."""
    return places.is_ours(getattr(metrics, "co_filename", None) or "")


def _breaks_us(graph_break):
    """Return True where the frame that was compiled is of a file of ours."""
    stack = graph_break.user_stack
    return bool(stack) and places.is_ours(stack[0].filename)


def _took_s(metrics):
    whole_s = getattr(metrics, "entire_frame_compile_time_s", None)
    us = getattr(metrics, "duration_us", None) or 0
    return us / 1e6 if whole_s is None else whole_s


def _first_line(reason):
    if isinstance(reason, (list, tuple)):
        reason = reason[0] if reason else ""
    return (str(reason).strip().splitlines() or [""])[0]


def _plain(reason):
    """Return the first line of a reason, without the compilation's number and its comment."""
    return _COMPILE_ID.sub("", _first_line(reason)).partition("  #")[0].strip()[:_LONGEST]


def _guarded_at(reason, code):
    """Return file and line that a guard names, whose path torch shortens; else the code's begin."""
    match = _GUARDED_AT.search(_first_line(reason))
    if match and code.co_filename.endswith(match[1]):
        return code.co_filename, int(match[2])
    return code.co_filename, code.co_firstlineno


class CompileFacts:
    """`compilation` of the process facts, read when they are written: no step has a hook for it."""

    def __init__(self, session):
        self._session = session
        self._log = CompileLog(session.torch)  # from here on it hears who gives up

    def facts(self):
        """Return {} where nothing was compiled: torch._dynamo is imported by other programs too."""
        if "torch._dynamo" not in sys.modules:
            return {}
        details = self._log.details()
        begun = self._session.first_step_s
        if not details.get("graphs") and not details.get("breaks"):
            return {}
        names = ("graphs", "compile_s", "gave_up")
        compilation = {
            **{name: details[name] for name in names if name in details},
            "breaks": _users(details.get("breaks")),
            "recompile_reasons": _users(details.get("recompile_reasons"), own_only=True),
        }
        if begun is not None:
            compilation.update(self._log.later(self._session.started_unix_s + begun))
        return {"compilation": compilation}


def _users(rows, own_only=False):
    """Return rows as `schema.CompileReason`.

    `own_only`: leave out places that are not the program's own, as of torch's wrapper of a model.
    """
    reasons = []
    for row in rows or ():
        file = row.get("file")
        reason = {"reason": row["reason"], "count": row["count"]}
        if file and not (own_only and not places.is_users(file)):
            reason["location"] = places.of_line(file, row["line"], row.get("function"))
            reason["text"] = places.text_at(reason["location"])
        reasons.append(reason)
    return reasons


def install(session):
    """Listen in the launch that is observed, which is not timed."""
    if session.plan.get("purpose") == "observe":
        session.registries.append(CompileFacts(session))
