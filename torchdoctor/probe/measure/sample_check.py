"""Questions to the data set: does it draw random numbers, does it give the same sample again?

The first is looked at around the first fetches of loaders without workers (their samplers draw
outside of these). The second is asked when everything else has been seen, in a launch that ends
right after: nothing is trained on what is made, and random states are put back all the same.
"""

import sys
import threading
import time
from functools import partial

from ..fixkit import random_states
from ..fixkit.sample_cache import SampleCache
from ..wrapping import wrap
from .nested import leaves

_MOST_S = 3.0
_SAMPLES, _FEWEST = 8, 2
_AGAIN = 4  # of them a third time, after the others
_MOST_BYTES = 2**28
_FETCHES = 20  # at least as many as have fingerprints
_DEPTH = 4  # of attributes that are searched for random generators


class SampleCheck:
    """Asks for a few samples twice, and for some of them once more."""

    def __init__(self, session):
        self._session = session
        self._row = None
        self._asked, self._took = 0, []
        self._reason = None

    def look(self, ident):
        """Ask the data set of the loader of this number; one that takes too long is left alone."""
        torch = self._session.torch
        dataset = getattr(self._session.loaders.known[ident].loader(), "dataset", None)
        if dataset is None or isinstance(dataset, torch.utils.data.IterableDataset):
            return
        cache = SampleCache(torch, _MOST_BYTES, lambda: None, partial(setattr, self, "_reason"))
        if cache.makes_whole_batches(dataset):
            return
        # A thread: a data set that waits for ever must not keep the launch from its end.
        asking = threading.Thread(target=self._ask, args=(dataset, cache), daemon=True)
        asking.start()
        asking.join(_MOST_S)
        if self._asked >= _FEWEST or self._reason is not None:
            self._row = {
                "loader": ident,
                "samples": self._asked,
                "same": self._reason is None,
                "reason": self._reason,
                "sample_s": sorted(self._took)[len(self._took) // 2] if self._took else None,
            }

    def _ask(self, dataset, cache):
        try:
            length = len(dataset)
            indices = range(0, length, max(length // _SAMPLES, 1))[:_SAMPLES]
            for index in indices:
                began_s = time.perf_counter()
                cache.get(dataset, index)
                self._took.append((time.perf_counter() - began_s) / 2)  # it is made twice
                if not cache.on:
                    return
                self._asked += 1
            cache.new_pass()
            for index in indices[:_AGAIN]:
                cache.get(dataset, index)
        except Exception as error:
            self._reason = "%s: %s" % (type(error).__name__, error)

    def facts(self):
        """Return `sample_check` of the process facts."""
        return {"sample_check": self._row}


class _Draws:
    """The first fetches of one iterator; sets `draws_random` of `known`, the loader's facts."""

    def __init__(self, torch, known, loader):
        self._torch, self._known, self._loader = torch, known, loader
        self._own = self._generators()

    def _generators(self):
        """Return generators that global states say nothing of."""
        torch = self._torch
        datasets = leaves(self._loader.dataset, torch)
        roots = [*datasets, getattr(self._loader, "collate_fn", None)]
        modules = {type(dataset).__module__ for dataset in datasets}
        beside = [x for name in modules for x in vars(sys.modules.get(name, sys)).values()]
        held = random_states.held_generators(roots, torch, _DEPTH)
        return held + random_states.held_generators(beside, torch, 0)

    def before(self):
        """Return what is to be compared after the fetch."""
        own = [random_states.generator_state(generator) for generator in self._own]
        return random_states.global_states(self._torch), own

    def after(self, before):
        """Note that a batch was made; return True while there is more to learn."""
        known, (states, own), (now, own_now) = self._known, before, self.before()
        known.looked_at += 1
        drawn = own != own_now or not random_states.same_states(states, now)
        if not drawn and known.looked_at in (1, _FETCHES):
            # One that the first sample made for itself.
            drawn = len(self._generators()) > len(self._own)
        known.draws_random = bool(known.draws_random) or drawn
        return not known.draws_random and known.looked_at < _FETCHES


def watch_draws(session, known, iterator):
    """Look around the fetches of a new iterator, where this process makes them itself."""
    fetcher, loader = getattr(iterator, "_dataset_fetcher", None), known.loader()
    if fetcher is None or loader is None or known.draws_random or known.looked_at >= _FETCHES:
        return
    draws = _Draws(session.torch, known, loader)

    def make(old):
        def fetch(*args, **kwargs):
            states = session.guarded(draws.before)()
            try:
                batch = old(*args, **kwargs)
            except BaseException as error:
                session.hide_frames(error)
                raise
            if states is None or not session.guarded(draws.after)(states):
                fetcher.__dict__.pop("fetch", None)
            return batch

        return fetch

    wrap(fetcher, "fetch", make)
