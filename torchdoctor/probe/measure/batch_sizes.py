"""The samples of a batch, counted without changing or keeping it."""

from ..step_log import UNKNOWN_SIZE
from .nested import length_of_list, rows, tensors_of

_MOST_ITEMS = 64
_ITSELF = object()  # the lead of a batch that is a list of samples


class BatchSizes:
    """Samples in the batches of one loader, which makes `asked` of them (None: it does not say).

    A lead is what is as long as the batch: an index, a key, or the list itself. It is learned from
    full batches and tells the size of a short one; a graph's tensors have a row for each node.
    """

    def __init__(self, asked):
        is_count = type(asked) is int and asked > 0
        # One sample in a batch is often a batch that was made ready: its tensors say how large.
        self._asked = asked if is_count and asked > 1 else None
        self._single = is_count and asked == 1
        self._leads = self._length = None

    def of(self, batch):
        """Return a batch's samples; `UNKNOWN_SIZE` where it has no size."""
        try:
            return self._by_lead(batch) or self._walked(batch)[0]
        except Exception:
            return UNKNOWN_SIZE

    def learn(self, batch):
        """Return `of` one of the first batches, and look at its leads."""
        try:
            samples, length = self._walked(batch)
            if length is None:
                return self._by_lead(batch) or samples
            self._keep(_leads(batch, samples, length))
            self._length = self._length or length
        except Exception:
            return UNKNOWN_SIZE
        return samples

    def _by_lead(self, batch):
        """Return 0 where no lead is known, or it does not fit this batch."""
        if not self._leads:
            return 0
        try:
            samples = _length_at(batch, self._leads[0])
        except Exception:  # a batch of another make
            return 0
        return samples if samples <= (self._asked or samples) else 0

    def _keep(self, leads):
        """Keep the leads that were as long as each batch: a graph's tensors are so by chance."""
        if self._leads is None:
            self._leads = leads
            return
        kept = [lead for lead in self._leads if lead in leads]
        if kept or self._asked is None:
            self._leads = kept

    def _walked(self, batch):
        """Return samples, and the length (`rows`, `length_of_list`) that is full, or None."""
        sizes = [int(leaf.shape[0]) for leaf in tensors_of(batch) if leaf.dim() > 0]
        most = max(set(sizes), key=sizes.count) if sizes else UNKNOWN_SIZE
        listed = self._single and isinstance(batch, (list, tuple)) and len(batch) > 1
        if listed and all(length_of_list(part) == 1 for part in batch):
            return 1, None  # what `tuple(zip(*samples))` leaves of a single sample
        if self._asked is None:
            return most, rows
        if self._asked == most or _leads(batch, self._asked, rows):
            return self._asked, rows
        # Where tensors were as long as the batch, a list is so by chance: the scales of an image.
        if self._length is not rows and _leads(batch, self._asked, length_of_list):
            return self._asked, length_of_list
        return (self._asked if self._asked in sizes else most), None


def _leads(batch, samples, length):
    """Return the leads whose `length` is that of the batch."""
    keys = batch.keys() if hasattr(batch, "keys") else ()
    if isinstance(batch, (list, tuple)):
        keys = range(min(len(batch), _MOST_ITEMS))
    leads = [key for key in keys if length(batch[key]) == samples > 0]
    if length is length_of_list and _is_list_of_samples(batch) and len(batch) == samples:
        leads.append(_ITSELF)
    return leads


def _length_at(batch, lead):
    """Return its length without a look at what lies there: timed launches ask for each batch."""
    if lead is _ITSELF:
        return len(batch)
    # A mapping may make what it does not have: it is the program's, and stays as it was.
    if isinstance(batch, (list, tuple)) or lead in batch.keys():  # noqa: SIM118
        return len(batch[lead])
    return 0


def _is_list_of_samples(batch):
    """Return whether its items are made alike: inputs and targets have other fields."""
    if not isinstance(batch, (list, tuple)) or len({type(item) for item in batch}) != 1:
        return False
    if hasattr(batch[0], "keys"):
        return len({tuple(map(str, item.keys())) for item in batch}) == 1
    return isinstance(batch[0], (list, tuple)) and len({len(item) for item in batch}) == 1
