"""DataLoader: how each was made, and the wait for each batch.

Iterators keep their type (`len(iter(loader))` works): `__next__` is wrapped on torch's own base
class, `__iter__` on DataLoader, which frameworks' subclasses call in the end.
"""

import functools
import inspect
import time
import weakref

from .. import places, step_log
from ..measure import loader_facts, loader_order, sample_draws
from ..measure.fingerprints import Fingerprints

_CPU_TIMED = 20  # fetches


class Loaders:
    """Every DataLoader of the process, numbered by construction."""

    def __init__(self, session):
        self._session = session
        self._idents = weakref.WeakKeyDictionary()
        self.known = []
        self.last = None  # the number of the one that was fetched from last, while fixes switch
        self.untouched_init = self.iterate = None  # torch's own, which log nothing
        self.suspended = {}  # by loader: an iterator in the middle of whose pass an epoch ended
        self._iterators = 0
        self.watches_order = session.phases  # not in launches that are timed
        self.fingerprints = Fingerprints(session.plan.get("fingerprint_batches") or 0)

    def next_ident(self):
        """The number that the next loader gets."""
        return len(self.known)

    def made(self, loader, location):
        """A new loader."""
        self._idents[loader] = len(self.known)
        known = loader_facts.Known(
            loader, location, self._session.torch, self._iterators, self._session.phases
        )
        self.known.append(known)

    def of(self, loader):
        """Its number."""
        if loader not in self._idents:
            self.made(loader, None)
        return self._idents[loader]

    def started(self, iterator, ident):
        """A new pass over a loader; its events carry loader and pass in one number."""
        self._iterators += 1
        known = self.known[ident]
        known.began(iterator)
        if self._session.arms:
            # `for batch in DataLoader(...)` keeps no name for what a second one is made after.
            iterator._torchdoctor_loader = known.loader()
        if self.watches_order:
            in_order = getattr(iterator, "_in_order", True)
            iterator._torchdoctor_overtaken = loader_order.Overtaken(known, in_order)
        iterator._torchdoctor_ident = ident | (self._iterators << step_log.LOADER_BITS)
        iterator._torchdoctor_handed = 0
        if self._session.phases:
            sample_draws.watch(self._session, known, iterator)

    def left(self, iterator):
        """Batches until the epoch ends, answered ones counted; None: nobody can say."""
        try:
            return len(iterator) - iterator._torchdoctor_handed
        except Exception:  # of a sampler of the program's own
            return None

    def resumed(self, loader):
        """The iterator to go on with where answers ended the epoch before; None: a new one.

        The program has not seen the rest of its pass. An evaluation gets a pass of its own.
        """
        if not self.suspended or not self._session.torch.is_grad_enabled():
            return None
        iterator = self.suspended.pop(self.of(loader), None)
        if iterator is not None:
            iterator._torchdoctor_handed = 0
        return iterator

    def fetched(self, known, batch, wall_s, on_cpu):
        """One of the first batches has come; `on_cpu`: what `_on_cpu_s` grew by.

        Returns:
            Its samples; `UNKNOWN_SIZE` where it has no size.
        """
        samples = known.sizes.learn(batch)
        known.batches += 1
        if samples > 0:
            known.samples += samples
        if known.batches <= _CPU_TIMED:
            known.note(batch, samples, wall_s, on_cpu)
        return samples

    def facts(self):
        """`loaders` of the process facts."""
        rows = [known.facts(ident) for ident, known in enumerate(self.known)]
        for row in rows:
            row["sample_fingerprints"] = self.fingerprints.of(row["ident"])
        return {"loaders": rows}


def install(session):
    """Wrap construction, iteration and fetching."""
    loaders = session.loaders = Loaders(session)
    session.registries.append(loaders)
    data = session.torch.utils.data
    _wrap_init(session, loaders, data.DataLoader)
    _wrap_iter(session, loaders, data.DataLoader)
    _wrap_next(session, loaders, data.dataloader._BaseDataLoaderIter)
    if loaders.watches_order:
        loader_order.install(session, data.dataloader._MultiProcessingDataLoaderIter)


def _wrap_init(session, loaders, cls):
    old = loaders.untouched_init = cls.__init__
    signature = inspect.signature(old)

    @functools.wraps(old)
    def __init__(self, *args, **kwargs):
        if session.on and any(p.loader_functions for p in session.programs):
            try:
                bound = signature.bind(self, *args, **kwargs)
            except TypeError:
                return old(self, *args, **kwargs)
            bound.apply_defaults()
            arguments = bound.arguments
            for program in session.programs:
                for function in program.loader_functions:
                    program.guarded(function, arguments, loaders.next_ident())
            old(*bound.args, **bound.kwargs)
        else:
            old(self, *args, **kwargs)
        try:
            loaders.made(self, places.made_here(self))
        except Exception as error:
            session.fail("loader", error)

    cls.__init__ = __init__


def _wrap_iter(session, loaders, cls):
    old = loaders.iterate = cls.__iter__

    @functools.wraps(old)
    def __iter__(self):
        if not session.on:
            return old(self)
        resumed = loaders.resumed(self)
        if resumed is not None:
            return resumed
        ident = loaders.of(self)
        session.log.add(step_log.LOADER_START_BEGIN, ident)
        try:
            iterator = old(self)
        except BaseException as error:
            session.hide_frames(error)
            raise
        finally:
            session.log.add(step_log.LOADER_START_END, ident)
        try:
            loaders.started(iterator, ident)
        except Exception as error:
            session.fail("iterator", error)
        return iterator

    cls.__iter__ = __iter__


def _on_cpu_s(before=(0.0, 0.0)):
    """Seconds that this thread computed, and that it stood in the queue for a CPU; since `before`.

    CPU time alone would call a loader that computes on a busy machine one that waits for a disk.
    The second is None where the system does not count it.
    """
    try:
        with open("/proc/thread-self/schedstat", "rb") as file:
            queued = int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        queued = None
    waited = None if queued is None or before[1] is None else queued - before[1]
    return time.thread_time() - before[0], waited


def _wrap_next(session, loaders, cls):
    old = cls.__next__

    mask = (1 << step_log.LOADER_BITS) - 1
    clock = time.perf_counter

    def first(number, batch, samples):
        """Of the first batches: their fingerprints, and the user's set-up is done."""
        if session.batches <= loaders.fingerprints.most_batches:
            loaders.fingerprints.add(number, batch, samples)
        if not session.first_batch_done:
            models.discover()
            session.first_batch()

    window, add, models = session.window, session.log.add, session.models
    bounds, sparse = window.kind == "loader", session.sparse

    def learned(ident, now):
        """By the user's word; of a timed launch only the batches of the loader that counts."""
        if window.kind is None or (bounds and ident & mask == window.ident):
            if session.phases:
                add(step_log.LEARNED, ident)
            session.learning(now)

    def end_closely(ident, known, batch, wall_s, on_cpu):
        samples = loaders.fetched(known, batch, wall_s, on_cpu)
        now = add(step_log.FETCH_END, ident, samples)
        session.batches += 1
        if session.batches_learn:
            learned(ident, now)
        if session.batches <= loaders.fingerprints.most_batches or not session.first_batch_done:
            first(ident & mask, batch, samples)

    def end(ident, known, batch):
        samples = known.sizes.of(batch)
        now = add(step_log.FETCH_END, ident, samples)
        if session.batches_learn:
            learned(ident, now)
        if sparse:
            if now > session.facts_due_ns and session.learned:
                session.learning_due()
            return
        known.batches += 1
        if samples > 0:
            known.samples += samples
        session.batches += 1

    def answer(number, left):
        for program in session.programs:
            for function, _ in program.fetch_functions:
                batch = program.guarded(function, number, left)
                if batch is not None:
                    return batch
        return None

    def given_back(number):
        for program in session.all_programs():
            for at, (ident, batch) in enumerate(program.given_back):
                if ident == number and not program.on:
                    del program.given_back[at]
                    return (batch,)
        return None

    def fetch(iterator, number):
        """The next batch, where fixes are switched on, or were."""
        loaders.last = number
        answered = answer(number, loaders.left(iterator)) if session.programs else None
        if answered == ():
            loaders.suspended[number] = iterator
            raise StopIteration
        if answered is None:
            answered = given_back(number)
        if answered is None:
            answered = (old(iterator),)
            for program in session.programs:
                for _, function in program.fetch_functions:
                    program.guarded(function, number, answered[0])
        iterator._torchdoctor_handed += 1
        return answered[0]

    @functools.wraps(old)
    def __next__(self):
        ident = getattr(self, "_torchdoctor_ident", None)
        if ident is None or not session.on:
            return old(self)
        known = loaders.known[ident & mask]
        try:
            if models.open_contexts:
                models.leave_contexts()
            if bounds:
                window.event("loader", ident & mask)
            if not sparse:
                add(step_log.FETCH_BEGIN, ident)
        except Exception as error:
            session.fail("fetch", error)
        closely = known.batches < _CPU_TIMED or not session.first_batch_done
        began, before = (clock(), _on_cpu_s()) if closely else (0.0, None)
        try:
            batch = fetch(self, ident & mask) if session.programs or session.arms else old(self)
        except BaseException as error:
            add(step_log.FETCH_END, ident, step_log.EXHAUSTED)
            if not isinstance(error, StopIteration):
                session.hide_frames(error)
            raise
        try:
            if closely:
                end_closely(ident, known, batch, clock() - began, _on_cpu_s(before))
            else:
                end(ident, known, batch)
        except Exception as error:
            session.fail("fetch", error)
        return batch

    cls.__next__ = __next__
    # Python resolves next(iterator) through `next` too in torch's own class body.
    if "next" in cls.__dict__:
        cls.next = __next__
