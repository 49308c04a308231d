"""DataLoader: how each was made, and the wait for each batch.

Iterators keep their type (`len(iter(loader))` works): `__next__` is wrapped on torch's own base
class, `__iter__` on DataLoader, which frameworks' subclasses call in the end, and `_get_iterator`,
for those that go on with an iterator which they made by it.
"""

import time
from importlib import import_module
from threading import get_ident

from .. import dynamo_frames, places, step_log, wrapping
from ..measure import loader_facts
from ..measure.nested import Fingerprints

_CPU_TIMED = 20  # fetches


class Loaders:
    """Every DataLoader of the process, numbered by construction."""

    def __init__(self, session):
        self._session = session
        # By identity: a program's loader may have no hash.
        self._idents = import_module("torch.utils.weak").WeakIdKeyDictionary()
        self.known = []
        self.last = None  # the number of the one that was fetched from last, while fixes switch
        self.untouched_init = self.iterate = None  # torch's own, which log nothing
        self.suspended = {}  # by loader: an iterator in the middle of whose pass an epoch ended
        self._iterators = 0
        self._alike = {}  # by number: whether the line of the one that separates steps made it
        self._making = set()  # (thread, loader) that make an iterator which is noted, or is ours
        self.fingerprints = Fingerprints(session.plan.get("fingerprint_batches") or 0)

    def made(self, loader, location):
        """Note a new loader."""
        session = self._session
        self._idents[loader] = len(self.known)
        self.known.append(
            loader_facts.Known(loader, location, session.torch, self._iterators, session.phases)
        )

    def of(self, loader):
        """Return its number."""
        if loader not in self._idents:
            self.made(loader, None)
        return self._idents[loader]

    def bounds(self, number, wanted):
        """Return whether a loader's fetches separate steps: it is the one, or made by its line."""
        if number == wanted:
            return True
        if number not in self._alike and wanted < len(self.known):
            self._alike[number] = self.known[number].is_made_where(self.known[wanted])
        return self._alike.get(number, False)

    def is_making(self, loader):
        """Return whether this thread makes an iterator of it that is noted already, or is ours."""
        return (get_ident(), id(loader)) in self._making

    def make(self, old, loader):
        """Return the iterator that torch's own method makes; nothing is noted of it."""
        making = get_ident(), id(loader)
        self._making.add(making)
        try:
            return old(loader)
        finally:
            self._making.discard(making)

    def started(self, iterator, ident):
        """Note a new pass over a loader; its events carry loader and pass in one number."""
        self._iterators += 1
        session = self._session
        record = self.known[ident]
        record.began(iterator)
        if session.arms:
            # `for batch in DataLoader(...)` keeps no name for what a second one is made after.
            iterator._torchdoctor_loader = record.loader()
        iterator._torchdoctor_ident = ident | (self._iterators << step_log.LOADER_BITS)
        iterator._torchdoctor_handed = 0
        if session.phases:
            in_order = getattr(iterator, "_in_order", True)
            iterator._torchdoctor_overtaken = loader_facts.Overtaken(record, in_order)

    def left(self, iterator):
        """Return batches until the epoch ends, answered ones counted; None: nobody can say."""
        try:
            return len(iterator) - iterator._torchdoctor_handed
        except Exception:  # of a sampler of the program's own
            return None

    def resumed(self, loader):
        """Return the iterator to go on with where answers ended the last epoch; None: a new one."""
        if not self.suspended or not self._session.torch.is_grad_enabled():
            return None
        iterator = self.suspended.pop(self.of(loader), None)
        if iterator is not None:
            iterator._torchdoctor_handed = 0
        return iterator

    def facts(self):
        """Return `loaders` of the process facts."""
        rows = [record.facts(ident) for ident, record in enumerate(self.known)]
        for row in rows:
            inputs, labels = self.fingerprints.of(row["ident"])
            row.update(input_hashes=inputs, label_hashes=labels)
        return {"loaders": rows}


def install(session):
    """Wrap construction, iteration and fetching."""
    loaders = session.loaders
    data = session.torch.utils.data
    _wrap_init(session, loaders, data.DataLoader)
    _wrap_iter(session, loaders, data.DataLoader)
    iterators = data.dataloader._BaseDataLoaderIter
    wrapping.wrap(iterators, "__next__", _Fetches(session, loaders).around)
    if session.phases:  # not in launches that are timed
        loader_facts.watch_order(session, data.dataloader._MultiProcessingDataLoaderIter)


def _wrap_init(session, loaders, cls):
    @session.guarded
    def made(loader):
        loaders.made(loader, places.made_here(loader))

    def make(old):
        changed = wrapping.with_arguments(
            old, lambda arguments: session.tell("loader", arguments, len(loaders.known))
        )

        def __init__(self, *args, **kwargs):
            fixed = session.on and any("loader" in p.functions for p in session.programs)
            (changed if fixed else old)(self, *args, **kwargs)
            made(self)

        return __init__

    loaders.untouched_init = wrapping.wrap(cls, "__init__", make)


def _wrap_iter(session, loaders, cls):
    compiling = session.torch.compiler.is_dynamo_compiling

    @dynamo_frames.pass_through
    def start(old, loader):
        ident = loaders.of(loader)
        session.log.add(step_log.LOADER_START_BEGIN, ident)
        try:
            iterator = loaders.make(old, loader)
        except BaseException as error:
            session.hide_frames(error)
            raise
        finally:
            session.log.add(step_log.LOADER_START_END, ident)
        session.guarded(loaders.started)(iterator, ident)
        return iterator

    def around_iter(old):
        def __iter__(self):
            if compiling() or not session.on or loaders.is_making(self):
                return old(self)
            if (resumed := loaders.resumed(self)) is not None:
                return resumed
            return start(old, self)

        return __iter__

    def around_maker(old):
        def _get_iterator(self):
            if compiling() or not session.on or loaders.is_making(self):
                return old(self)
            return start(old, self)

        return _get_iterator

    untouched = wrapping.wrap(cls, "__iter__", around_iter)
    loaders.iterate = lambda loader: loaders.make(untouched, loader)
    wrapping.wrap(cls, "_get_iterator", around_maker)


def _on_cpu_s(before=(0.0, 0.0)):
    """Return seconds that this thread computed and queued for a CPU (None: unknown) since `before`.

    CPU time alone would say that a loader on a busy machine waits for a disk.
    """
    try:
        with open("/proc/thread-self/schedstat", "rb") as file:
            queued = int(file.read().split()[1]) / 1e9 - before[1]
    except (OSError, ValueError, IndexError, TypeError):
        queued = None
    return time.thread_time() - before[0], queued


class _Fetches:
    """The work before and after each fetch of each loader."""

    def __init__(self, session, loaders):
        self._session = session
        self._loaders = loaders
        self._bounds = session.window.bounds("loader")

    def _learned(self, number, ident, now):
        """Note a step by the user's word; in a timed launch only of the loader that counts."""
        session = self._session
        window = self._session.window
        is_boundary = window.kind == "loader" and self._loaders.bounds(number, window.ident)
        if window.kind is None or is_boundary:
            if session.phases:
                session.log.add(step_log.LEARNED, ident)
            session.learning(now)

    def _end_closely(self, number, ident, batch, wall_s, on_cpu):
        """Note one of the first batches; `on_cpu`: what `_on_cpu_s` grew by."""
        session = self._session
        fingerprints = self._loaders.fingerprints
        record = self._loaders.known[number]
        samples = record.sizes.learn(batch)
        record.batches += 1
        record.samples += max(samples, 0)
        if record.batches <= _CPU_TIMED:
            record.note(batch, samples, wall_s, on_cpu)
        now = session.log.add(step_log.FETCH_END, ident, samples)
        session.batches += 1
        if session.batches_learn:
            self._learned(number, ident, now)
        if session.batches <= fingerprints.most_batches:
            fingerprints.add(number, batch, samples)
        if not session.first_batch_done:
            session.models.discover()
            session.first_batch()

    def _end(self, number, ident, batch):
        session = self._session
        record = self._loaders.known[number]
        samples = record.sizes.of(batch)
        now = session.log.add(step_log.FETCH_END, ident, samples)
        if session.batches_learn:
            self._learned(number, ident, now)
        if session.sparse:
            if now > session.facts_due_ns and session.learned:
                session.learning_due()
            return
        record.batches += 1
        if samples > 0:
            record.samples += samples
        session.batches += 1

    def _given_back(self, number):
        for program in self._session.all_programs():
            for at, (ident, batch) in enumerate(program.given_back):
                if ident == number and not program.on:
                    del program.given_back[at]
                    return (batch,)
        return None

    def _fetch(self, old, iterator, number):
        """Return the next batch, where fixes are switched on, or were."""
        session = self._session
        loaders = self._loaders
        loaders.last = number
        answer = session.ask("fetch", number, loaders.left(iterator)) if session.programs else None
        if answer == ():
            loaders.suspended[number] = iterator
            raise StopIteration
        answer = self._given_back(number) if answer is None else answer
        if answer is None:
            answer = (old(iterator),)
            session.tell("fetched", number, answer[0])
        iterator._torchdoctor_handed += 1
        return answer[0]

    def around(self, old):
        """Return the wrapper of `__next__`."""
        dynamo_frames.pass_through(_Fetches._fetch)
        session = self._session
        loaders = self._loaders
        models = self._session.models
        window = session.window
        add = session.log.add
        bounds = self._bounds
        sparse = session.sparse
        clock = time.perf_counter
        compiling = session.torch.compiler.is_dynamo_compiling
        mask = (1 << step_log.LOADER_BITS) - 1

        def __next__(iterator):
            if compiling():
                return old(iterator)
            ident = getattr(iterator, "_torchdoctor_ident", None)
            if ident is None or not session.on:
                return old(iterator)
            number = ident & mask
            try:
                if models.open_contexts:
                    models.leave_contexts()
                if bounds and window.kind == "loader" and loaders.bounds(number, window.ident):
                    window.event("loader", window.ident)
                if not sparse:
                    add(step_log.FETCH_BEGIN, ident, get_ident())
            except Exception as error:
                session.fail("fetch", error)
            closely = loaders.known[number].batches < _CPU_TIMED or not session.first_batch_done
            began, before = (clock(), _on_cpu_s()) if closely else (0.0, None)
            try:
                switched = session.programs or session.arms
                batch = self._fetch(old, iterator, number) if switched else old(iterator)
            except BaseException as error:
                add(step_log.FETCH_END, ident, step_log.EXHAUSTED)
                session.log.last_code = step_log.LOADER_START_END  # until the next pass begins
                if not isinstance(error, StopIteration):
                    session.hide_frames(error)
                raise
            try:
                if closely:
                    wall_s = clock() - began
                    self._end_closely(number, ident, batch, wall_s, _on_cpu_s(before))
                else:
                    self._end(number, ident, batch)
            except Exception as error:
                session.fail("fetch", error)
            return batch

        return __next__
