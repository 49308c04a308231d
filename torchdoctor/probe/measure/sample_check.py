"""A question to the data set: does it give the same sample when asked for it again?

Looked at when everything else has been seen, in a launch that ends right after: nothing is trained
on what is made here, and random states are put back all the same.
"""

import threading
import time

from ..fixkit.sample_cache import SampleCache

_MOST_S = 3.0
_SAMPLES, _FEWEST = 8, 2
_AGAIN = 4  # of them a third time, after the others
_MOST_BYTES = 2**28


class SampleCheck:
    """Asks for a few samples twice, and for some of them once more."""

    def __init__(self, session):
        self._session = session
        self._found = None
        self._asked, self._took = 0, []
        self._reason = None

    def look(self, ident):
        """Ask the data set of a loader; a data set that takes too long is left alone.

        Args:
            ident: the loader's number.
        """
        loader = self._session.loaders.known[ident].loader()
        dataset = getattr(loader, "dataset", None)
        if dataset is None:
            return
        if isinstance(dataset, self._session.torch.utils.data.IterableDataset):
            return
        cache = SampleCache(self._session.torch, _MOST_BYTES, lambda: None, self._off)
        if cache.makes_whole_batches(dataset):
            return
        done = threading.Event()
        arguments = (dataset, cache, done)
        # A thread: a data set that waits for ever must not keep the launch from its end.
        threading.Thread(target=self._ask, args=arguments, daemon=True).start()
        done.wait(_MOST_S)
        if self._asked >= _FEWEST or self._reason is not None:
            self._found = {
                "loader": ident,
                "samples": self._asked,
                "same": self._reason is None,
                "reason": self._reason,
                "sample_s": sorted(self._took)[len(self._took) // 2] if self._took else None,
            }

    def _off(self, reason):
        self._reason = reason

    def _ask(self, dataset, cache, done):
        try:
            length = len(dataset)
            places = range(0, length, max(length // _SAMPLES, 1))[:_SAMPLES]
            for index in places:
                began_s = time.perf_counter()
                cache.get(dataset, index)
                self._took.append((time.perf_counter() - began_s) / 2)  # it is made twice
                if not cache.on:
                    return
                self._asked += 1
            cache.new_pass()
            for index in places[:_AGAIN]:
                cache.get(dataset, index)
        except Exception as error:
            self._reason = "%s: %s" % (type(error).__name__, error)
        finally:
            done.set()

    def facts(self):
        """Return `sample_check` of the process facts."""
        return {"sample_check": self._found}
