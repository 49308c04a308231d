"""The work of torch.compile: its time, where graphs broke, why it compiled again.

Read from torch's own counters, which differ from version to version: what one lacks is left out.
"""

import linecache
import logging
import os
import re
import sys
import time

from .. import places

_MOST = 8  # rows of each kind
_LONGEST = 200  # characters of a reason
_COMPILE_ID = re.compile(r"^\d+/\d+(_\d+)?: ")
_GUARDED_AT = re.compile(r"  # .*?  # (\S+\.py):(\d+) in ")
_RESUMED = re.compile(r"torch_dynamo_resume_in_(.+)_at_\d+$")  # what follows a graph break
_VALUES = re.compile(r"(== |expected |actual )-?[\d.]+")


class CompileLog(logging.Handler):
    """Counts what has been compiled since it was made.

    Args:
        torch: the user's torch module.
    """

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
            text = record.getMessage()
            match = re.search(r"function: (.*)\n\s*last reason: (.*)", text)
            if "torch._dynamo hit config." in text and match:
                row = {"function": match[1].strip(), "reason": _plain(match[2])}
                if row not in self.gave_up and len(self.gave_up) < _MOST:
                    self.gave_up.append(row)
        except Exception:
            pass  # a message that reads otherwise is no failure of the program's

    def changed(self):
        """Note that a backward pass begins; return True if there is more to tell than before it."""
        self.passes += 1
        try:
            graphs = self._torch._dynamo.utils.counters["stats"]["unique_graphs"]
        except (AttributeError, KeyError):
            return False
        if graphs == self._graphs:
            due, self._due = self._due, False
            return due
        self._graphs, self._due = graphs, True
        if len(self._compiled_at) < 2 * _MOST:
            self._compiled_at.append(self.passes)
        return True

    def details(self):
        """Return all of it as plain data: the fix torch-compile says what is made of it."""
        details = {"passes": self.passes, "compiled_at": list(self._compiled_at)}
        for part in (self._counted, self._timed, self._breaks, self._recompiled):
            try:
                details.update(part())
            except (AttributeError, KeyError, TypeError, ValueError, IndexError):
                pass  # this torch does not tell
        if self.gave_up:
            details["gave_up"] = list(self.gave_up)
        return details

    def _counted(self):
        counters = self._torch._dynamo.utils.counters
        return {
            "graph_breaks": sum(counters["graph_break"].values()),
            "graphs": int(counters["stats"]["unique_graphs"]),
        }

    def _timed(self):
        spent = self._torch._dynamo.utils.calculate_time_spent()
        if "total_wall_time" in spent:
            total = spent["total_wall_time"]
        else:  # torch 2.4: frames and, outside of them, what inductor did for backward
            outside = spent.get("inductor_compile", 0) - spent.get("backend_compile", 0)
            total = spent["entire_frame_compile"] + max(0, outside)
        return {"compile_s": round(float(total), 3)}

    def compilations(self):
        """Return the latest compilations, forward frames and backward graphs.

        Rows of `start_unix_s`, `seconds`, `again` (a further version of what was compiled
        before; of a backward graph, that its forward is) and `function` (None: a backward graph);
        empty where this torch does not tell.
        """
        rows, further = [], set()
        try:
            for metrics in self._torch._dynamo.utils.get_compilation_metrics():
                rows.append(_compilation(metrics, further))
        except (AttributeError, TypeError, ValueError):
            pass
        return rows

    def _breaks(self):
        """Return graph breaks by reason and line of the user's code."""
        rows = {}
        for graph_break in self._torch._dynamo.utils.graph_break_reasons:
            frames = [f for f in graph_break.user_stack if not f.filename.startswith(self._own)]
            place = (frames[-1].filename, frames[-1].lineno) if frames else (None, None)
            key = (_plain(graph_break.reason), *place)
            rows[key] = rows.get(key, 0) + 1
        return {"breaks": _rows(("reason", "file", "line"), rows)}

    def _recompiled(self):
        """Return functions that were compiled for other inputs again, with what had changed."""
        utils, rows, examples = self._torch._dynamo.utils, {}, {}
        total = sum(map(_is_further, utils.get_compilation_metrics()))
        for code, reasons in utils.guard_failures.items():
            resumed = _RESUMED.match(code.co_name)
            function = resumed[1] if resumed else code.co_name
            # Each time, every earlier version says why it did not fit: counts only rank.
            for reason in reasons:
                text = _plain(reason)
                key = (_VALUES.sub(r"\1*", text), function, *_guarded_at(reason, code))
                rows[key] = rows.get(key, 0) + 1
                examples[key] = text
        names = ("reason", "function", "file", "line")
        reasons = _rows(names, rows)
        for row in reasons:
            row["reason"] = examples[tuple(row[name] for name in names)]
        return {"recompiles": total, "recompile_reasons": reasons}


def _is_further(metrics):
    """Return True for a further version of what was compiled before."""
    return (getattr(metrics, "cache_size", None) or 0) > 0


def _compilation(metrics, further):
    """Return a row of `compilations`; `further`: ids of the further versions before it."""
    seconds = getattr(metrics, "entire_frame_compile_time_s", None)
    if seconds is None:
        seconds = (getattr(metrics, "duration_us", None) or 0) / 1e6
    again, name = _is_further(metrics), getattr(metrics, "co_name", None)
    version = getattr(metrics, "compile_id", None) and str(metrics.compile_id)
    if again:
        further.add(version)
    elif name is None and version is not None:
        again = version in further
    return {
        "start_unix_s": float(metrics.start_time),
        "seconds": float(seconds),
        "again": again,
        "function": name and (name, metrics.co_filename, metrics.co_firstlineno),
    }


def _rows(names, rows):
    ordered = sorted(rows.items(), key=lambda row: -row[1])[:_MOST]
    return [{**dict(zip(names, key)), "count": count} for key, count in ordered]  # noqa: B905


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
        try:
            details = self._log.details()
            if not details.get("graphs") and not details.get("breaks"):
                return {}
            return {"compilation": self._compilation(details)}
        except Exception as error:
            self._session.fail("compilation", error)
            return {}

    def _compilation(self, details):
        known = ("graphs", "compile_s", "recompiles", "gave_up")
        breaks, count = _users(details.get("breaks")), details.get("graph_breaks", 0)
        # Of torch's total, those that our own frames cause are none of the program's.
        if len(breaks) < len(details.get("breaks") or ()):
            count = sum(row["count"] for row in breaks)
        return {
            **{name: details[name] for name in known if name in details},
            "breaks": breaks,
            "graph_breaks": count,
            "recompile_reasons": _users(details.get("recompile_reasons"), own_only=True),
            **self._later(),
        }

    def _later(self):
        """Return what has been compiled since the first backward pass or optimizer step ended."""
        begun = self._session.first_step_s
        if begun is None:
            return {}
        begun_unix_s = self._session.started_unix_s + begun
        rows = self._log.compilations()
        later = [row for row in rows if row["again"] and row["start_unix_s"] >= begun_unix_s]
        versions = {}
        for row in later:
            if row["function"]:
                versions[row["function"]] = versions.get(row["function"], 0) + 1
        watched_s = max(time.time() - begun_unix_s, 0.0)
        return {
            "watched_s": round(watched_s, 3),
            "later_recompiles": sum(versions.values()),
            "later_most": max(versions.values(), default=0),
            "later_s": round(min(sum(row["seconds"] for row in later), watched_s), 3),
        }


def _users(rows, own_only=False):
    """Return rows with a place that is not the probe's, as `words.CompileReason`.

    Args:
        rows: of `compile_log`.
        own_only: leave out places that are not the program's own, as of torch's wrapper of a model.
    """
    reasons = []
    for row in rows or ():
        file = row.get("file")
        if file and places.is_probes(file):
            continue
        reason = {"reason": row["reason"], "count": row["count"]}
        if file and not (own_only and not places.is_users(file)):
            reason["location"] = places.of_line(file, row["line"], row.get("function"))
            reason["text"] = linecache.getline(file, row["line"]).strip()
        reasons.append(reason)
    return reasons


def install(session):
    """Listen in the launch that is observed, which is not timed."""
    if session.plan.get("purpose") == "observe":
        session.registries.append(CompileFacts(session))
