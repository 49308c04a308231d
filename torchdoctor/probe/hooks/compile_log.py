"""What torch.compile says of its own work: its time, where graphs broke, why it compiled again.

Read from torch's own counters, which differ from version to version: what one lacks is left out.
"""

import logging
import os
import re

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
        """A warning of dynamo's."""
        try:
            text = record.getMessage()
            found = re.search(r"function: (.*)\n\s*last reason: (.*)", text)
            if "torch._dynamo hit config." in text and found:
                row = {"function": found[1].strip(), "reason": _plain(found[2])}
                if row not in self.gave_up and len(self.gave_up) < _MOST:
                    self.gave_up.append(row)
        except Exception:
            pass  # a message that reads otherwise is no failure of the program's

    def changed(self):
        """One more backward pass begins; whether there is more to tell than at the one before."""
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
        """All of it as plain data: see the fix torch-compile for what is made of it."""
        found = {"passes": self.passes, "compiled_at": list(self._compiled_at)}
        for part in (self._counted, self._timed, self._breaks, self._recompiled):
            try:
                found.update(part())
            except (AttributeError, KeyError, TypeError, ValueError, IndexError):
                pass  # this torch does not tell
        if self.gave_up:
            found["gave_up"] = list(self.gave_up)
        return found

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
        """The latest compilations, forward frames and backward graphs, as torch remembers them.

        Rows of `start_unix_s`, `seconds`, `again` (a further version of what was compiled
        before; of a backward graph, that its forward is) and `function` (None: a backward graph);
        empty where this torch does not tell.
        """
        found, further = [], set()
        try:
            for one in self._torch._dynamo.utils.get_compilation_metrics():
                seconds = getattr(one, "entire_frame_compile_time_s", None)
                if seconds is None:
                    seconds = (getattr(one, "duration_us", None) or 0) / 1e6
                again, version = (getattr(one, "cache_size", None) or 0) > 0, None
                name = getattr(one, "co_name", None)
                if getattr(one, "compile_id", None) is not None:
                    version = str(one.compile_id)
                if again:
                    further.add(version)
                elif name is None and version is not None:
                    again = version in further
                found.append(
                    {
                        "start_unix_s": float(one.start_time),
                        "seconds": float(seconds),
                        "again": again,
                        "function": name and (name, one.co_filename, one.co_firstlineno),
                    }
                )
        except (AttributeError, TypeError, ValueError):
            pass
        return found

    def _breaks(self):
        """Graph breaks by reason and line of the user's code."""
        rows = {}
        for one in self._torch._dynamo.utils.graph_break_reasons:
            frames = [f for f in one.user_stack if not f.filename.startswith(self._own)]
            place = (frames[-1].filename, frames[-1].lineno) if frames else (None, None)
            key = (_plain(one.reason), *place)
            rows[key] = rows.get(key, 0) + 1
        return {"breaks": _rows(("reason", "file", "line"), rows)}

    def _recompiled(self):
        """Functions that were compiled for other inputs again, with what had changed."""
        utils, rows, examples = self._torch._dynamo.utils, {}, {}
        metrics = utils.get_compilation_metrics()
        total = sum((getattr(one, "cache_size", None) or 0) > 0 for one in metrics)
        for code, reasons in utils.guard_failures.items():
            resumed = _RESUMED.match(code.co_name)
            function = resumed[1] if resumed else code.co_name
            # Each time, every earlier version says why it did not fit: counts only rank.
            for reason in reasons:
                text = _plain(reason)
                key = (_VALUES.sub(r"\1*", text), function, *_guarded_at(reason, code))
                rows[key] = rows.get(key, 0) + 1
                examples[key] = text
        found = _rows(("reason", "function", "file", "line"), rows)
        for row in found:
            row["reason"] = examples[row["reason"], row["function"], row["file"], row["line"]]
        return {"recompiles": total, "recompile_reasons": found}


def _rows(names, rows):
    ordered = sorted(rows.items(), key=lambda row: -row[1])[:_MOST]
    return [{**dict(zip(names, key)), "count": count} for key, count in ordered]  # noqa: B905


def _first_line(reason):
    if isinstance(reason, (list, tuple)):
        reason = reason[0] if reason else ""
    return (str(reason).strip().splitlines() or [""])[0]


def _plain(reason):
    """The first line of a reason, without the compilation's number and its comment."""
    return _COMPILE_ID.sub("", _first_line(reason)).partition("  #")[0].strip()[:_LONGEST]


def _guarded_at(reason, code):
    """File and line that a guard names, whose path torch shortens; else where the code begins."""
    found = _GUARDED_AT.search(_first_line(reason))
    if found and code.co_filename.endswith(found[1]):
        return code.co_filename, int(found[2])
    return code.co_filename, code.co_firstlineno
