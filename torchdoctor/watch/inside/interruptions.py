"""How long copies and garbage collections took, each without those that happened within it."""

from collections import deque

from ...probe import step_log

_BEGIN_OF = {step_log.COPY_END: step_log.COPY_BEGIN, step_log.GC_END: step_log.GC_BEGIN}
_MOST_WITHIN = 16  # of one


class Interruptions:
    """Copies and collections of all threads. Each is told when it is over: its begin, then its end.

    A collection or another thread may come between the two. Of nested ones the inner one is told
    first.
    """

    def __init__(self):
        self._began = {}  # by thread and code
        self._ended = {}  # by thread: the last ones, as (begin, ns that it took)

    def take(self, thread, code, t_ns):
        """Take in a begin, or an end; return how long what ends took by itself (ns), else None."""
        begin = _BEGIN_OF.get(code)
        if begin is None:
            self._began[thread, code] = t_ns
            return None
        began_ns = self._began.pop((thread, begin), t_ns)
        ended = self._ended.setdefault(thread, deque(maxlen=_MOST_WITHIN))
        within_ns = 0
        while ended and ended[-1][0] >= began_ns:
            within_ns += ended.pop()[1]
        ended.append((began_ns, t_ns - began_ns))
        return max(t_ns - began_ns - within_ns, 0)
