"""When what a loader's workers had ready, while nobody took any, is used up.

Workers that are slower than the training fall behind one batch at a time: as many batches as the
queue holds are taken long before it runs dry, and until then no step waits for data.
"""

_MOST = 4, 20  # iterations that are waited for: times the queue's length, and beside that


def most_iterations(stock):
    """How long is waited for a queue that holds so many batches."""
    return _MOST[0] * stock + _MOST[1]


class ReadyBatches:
    """The queue of one iterator, looked at once in each iteration since a switch.

    Args:
        stock: batches that its workers may hold ready.
    """

    def __init__(self, stock):
        self._stock = stock
        self._levels = []

    def are_used_up(self, level):
        """Whether it has run dry, or its workers keep up with what is taken.

        `level`: batches that lie ready now.
        """
        levels, stock = self._levels, self._stock
        levels.append(level)
        seen = len(levels) - 1
        keeps_up = seen >= stock and level >= levels[seen - stock]
        return level == 0 or keeps_up or seen >= most_iterations(stock)


def of(iterator):
    """(batches that lie ready, batches that may) of an iterator; None: it has no workers."""
    queue, workers = getattr(iterator, "_data_queue", None), getattr(iterator, "_num_workers", 0)
    if queue is None or not workers:
        return None
    try:
        return queue.qsize(), workers * (getattr(iterator, "_prefetch_factor", None) or 2)
    except (NotImplementedError, OSError):  # macOS counts no queue
        return None
