"""Random numbers that preparing samples draws (`LoaderFacts.draws_random`).

Seen around the fetches of loaders without workers: their samplers draw outside of these.
"""

import sys

from ..fixkit import random_states
from ..wrapping import wrap
from .nested import leaves

_FETCHES = 20  # at least as many as have fingerprints
_DEPTH = 4  # of attributes that are searched for random generators


class Watched:
    """The first fetches of one iterator.

    Args:
        session: the process's session.
        known: the loader's `loader_facts.Known`; its `draws_random` is set.
        loader: the DataLoader.
    """

    def __init__(self, session, known, loader):
        self._session, self._known, self._loader = session, known, loader
        self._own = self._generators()

    def _generators(self):
        """Return generators that global states say nothing of."""
        torch = self._session.torch
        datasets = leaves(self._loader.dataset, torch)
        roots = [*datasets, getattr(self._loader, "collate_fn", None)]
        held = random_states.held_generators(roots, torch, _DEPTH)
        modules = {type(dataset).__module__ for dataset in datasets}
        beside = [x for name in modules for x in vars(sys.modules.get(name, sys)).values()]
        return held + random_states.held_generators(beside, torch, 0)

    def before(self):
        """Return what is to be compared after the fetch."""
        own = [random_states.generator_state(generator) for generator in self._own]
        return random_states.global_states(self._session.torch), own

    def after(self, before):
        """Note that a batch was made."""
        known, (states, own) = self._known, before
        known.looked_at += 1
        now, own_now = self.before()
        drawn = own != own_now or not random_states.same_states(states, now)
        if not drawn and known.looked_at in (1, _FETCHES):
            # One that the first sample made for itself.
            drawn = len(self._generators()) > len(self._own)
        known.draws_random = bool(known.draws_random) or drawn

    @property
    def on(self):
        """Return True while there is more to learn."""
        return not self._known.draws_random and self._known.looked_at < _FETCHES


def watch(session, known, iterator):
    """Look around the fetches of a new iterator, where this process makes them itself."""
    fetcher, loader = getattr(iterator, "_dataset_fetcher", None), known.loader()
    if fetcher is None or loader is None or known.draws_random or known.looked_at >= _FETCHES:
        return
    watched = Watched(session, known, loader)

    def make(old):
        def fetch(*args, **kwargs):
            states = session.guarded(watched.before)()
            try:
                batch = old(*args, **kwargs)
            except BaseException as error:
                session.hide_frames(error)
                raise
            if states is not None:
                session.guarded(watched.after)(states)
            if states is None or not watched.on:
                fetcher.__dict__.pop("fetch", None)
            return batch

        return fetch

    wrap(fetcher, "fetch", make)
