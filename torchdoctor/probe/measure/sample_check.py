"""Questions to the data set: does it give the same sample again, does it draw random numbers?

They are asked when everything else has been seen, in a launch that ends right after: nothing is
trained on what is made, and random states are put back all the same.
"""

import threading
import time
from functools import partial

from ..fixkit import random_states
from ..fixkit.sample_cache import SampleCache
from ..reasons import raised

_MOST_S = 3.0
_SAMPLES = 8
_FEWEST = 2
_AGAIN = 4  # of them a third time, after the others
_MOST_BYTES = 2**28


class SampleCheck:
    """Asks for a few samples twice, and for some of them once more."""

    def __init__(self, session):
        self._session = session
        self._row = None
        self._why_not = None  # kept: the reason, as data
        self._asked = 0
        self._took = []
        self._draws_random = False

    def look(self, ident):
        """Ask the data set of the loader of this number; one that takes too long is left alone."""
        torch = self._session.torch
        loader = self._session.loaders.known[ident].loader()
        dataset = getattr(loader, "dataset", None)
        if dataset is None or isinstance(dataset, torch.utils.data.IterableDataset):
            return
        cache = SampleCache(torch, _MOST_BYTES, lambda: None, partial(setattr, self, "_why_not"))
        if cache.makes_whole_batches(dataset):
            return
        # A thread: a data set that waits for ever must not keep the launch from its end.
        asking = threading.Thread(target=self._ask, args=(loader, cache), daemon=True)
        asking.start()
        asking.join(_MOST_S)
        if self._asked >= _FEWEST or self._why_not is not None:
            self._row = {
                "loader": ident,
                "samples": self._asked,
                "same": self._why_not is None,
                "why": self._why_not,
                "draws_random": self._draws_random or cache.draws_random,
                "sample_s": sorted(self._took)[len(self._took) // 2] if self._took else None,
            }

    def _ask(self, loader, cache):
        dataset = loader.dataset
        samples = []
        try:
            length = len(dataset)
            indices = range(0, length, max(length // _SAMPLES, 1))[:_SAMPLES]
            for index in indices:
                began_s = time.perf_counter()
                samples.append(cache.get(dataset, index))
                self._took.append((time.perf_counter() - began_s) / 2)  # it is made twice
                if not cache.on:
                    return
                self._asked += 1
            if loader.batch_sampler is not None:
                self._draws_random = self._collates_at_random(loader, samples)
            cache.new_pass()
            for index in indices[:_AGAIN]:
                cache.get(dataset, index)
        except Exception as error:
            self._why_not = raised(error)

    def _collates_at_random(self, loader, samples):
        torch = self._session.torch
        before = random_states.global_states(torch)
        loader.collate_fn(samples)
        after = random_states.global_states(torch)
        random_states.restore(torch, before)
        return not random_states.same_states(before, after)

    def facts(self):
        """Return `sample_check` of the process facts."""
        return {"sample_check": self._row}
