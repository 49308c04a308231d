"""What torch.compile does in a program that uses it: graph breaks, recompilations, their time.

Read from torch's counters whenever facts are written, in the observing launch alone: no step has a
hook for it.
"""

import linecache
import sys
import time

from .. import places
from ..hooks import compile_log


class CompileFacts:
    """`compilation` of the process facts.

    Args:
        session: of this process.
    """

    def __init__(self, session):
        self._session = session
        self._log = compile_log.CompileLog(session.torch)  # from here on it hears who gives up

    def facts(self):
        """Empty where nothing was compiled: torch._dynamo is imported by programs that do not."""
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
        found = {name: details[name] for name in known if name in details}
        found["breaks"] = _users(details.get("breaks"))
        found["recompile_reasons"] = _users(details.get("recompile_reasons"), own_only=True)
        # Of torch's total, those that our own frames cause are none of the program's.
        ours = len(details.get("breaks") or ()) - len(found["breaks"])
        found["graph_breaks"] = (
            sum(row["count"] for row in found["breaks"]) if ours else details.get("graph_breaks", 0)
        )
        return {**found, **self._later()}

    def _later(self):
        """What has been compiled since the first backward pass or optimizer step ended."""
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
    """Rows with a place that is not the probe's, as `records.CompileReason`.

    Args:
        rows: of `compile_log`.
        own_only: leave out places that are not the program's own, as of torch's wrapper of a model.
    """
    found = []
    for row in rows or ():
        file = row.get("file")
        if file and places.is_probes(file):
            continue
        one = {"reason": row["reason"], "count": row["count"]}
        if file and not (own_only and not places.is_users(file)):
            one["location"] = places.of_line(file, row["line"], row.get("function"))
            one["text"] = linecache.getline(file, row["line"]).strip()
        found.append(one)
    return found


def install(session):
    """Listen in the launch that is observed, which is not timed."""
    if session.plan.get("purpose") == "observe":
        session.registries.append(CompileFacts(session))
