"""What a model decides: the largest score of each row of its output, or the ids that it gives.

Kept for the first outputs, by which launches are compared; read where the device is waited for.
"""

import os
from array import array

_MOST_ROWS = 64  # of an output


class Decisions:
    """Appends to `decisions-<number>.bin` the index of an output and a decision, for each one."""

    def __init__(self, session):
        self._session = session
        self._pending = []
        session.forget.append(self._pending.clear)
        session.when_device_rests.append(self._read_device)
        session.when_flushing.append(self._write)

    def keep(self, number, leaf):
        """Keep the decisions of output `number`, a plain tensor."""
        chosen = _chosen(self._session.torch, leaf.detach())
        if chosen is not None:
            self._pending.append((number, chosen))

    def _read_device(self):
        self._pending[:] = [(number, chosen.cpu()) for number, chosen in self._pending]

    def _write(self):
        ready = [(number, chosen) for number, chosen in self._pending if chosen.is_cpu]
        self._pending[:] = [pair for pair in self._pending if not pair[1].is_cpu]
        rows = array("q")
        for number, chosen in ready:
            for choice in chosen.tolist():
                rows.extend((number, int(choice)))
        if rows:
            name = "decisions-%d.bin" % self._session.number
            with open(os.path.join(self._session.channel, name), "ab") as file:
                rows.tofile(file)


def _chosen(torch, leaf):
    """Return the decisions of some rows; None: it is neither scores nor ids."""
    if leaf.dtype in (torch.int64, torch.int32):
        return _some(leaf.reshape(-1)).clone()
    if not leaf.is_floating_point() or leaf.dim() < 2:
        return None
    # Scores of pixels are planes; elsewhere they stand next to each other.
    scores = leaf.movedim(1, -1) if leaf.dim() > 3 else leaf
    if scores.shape[-1] < 2:
        return None
    return _some(scores.reshape(-1, scores.shape[-1])).argmax(-1)


def _some(rows):
    return rows[:: max(-(-len(rows) // _MOST_ROWS), 1)]
