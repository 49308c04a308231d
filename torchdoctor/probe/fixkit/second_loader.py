"""Batches from a second loader while a loader fix is on, in a running program.

It is made with what the fix changes, over the same data set; the program's own iterator stands
still meanwhile. Epochs end after as many batches as ever. Workers live until the launch ends.
"""

import copy
import inspect
import itertools
import os
import time

from ..measure.loader_facts import why_no_second
from ..measure.nested import parts_of
from ..reasons import reason
from . import random_states, spare_memory

_DEPTH = 3  # of attributes whose generators are cloned, and of what a data set holds

_WAIT_S = 60.0  # for a batch: workers that hang must not hold the program for ever
_REFILL_S = 30.0  # for workers to fill their queues once the fix is off
_FEW = 3  # steps
_NO_BATCH = object()
_MOST_WAITS = 4, 20  # iterations that are waited for: times the queue's length, and beside that


class SecondLoader:
    """The second loader of one fix; made when it is switched on for the first time."""

    def __init__(self, program):
        self.functions = []
        self._program = program
        self._ident = None  # the loader in whose place it hands out
        self._loader = self._iterator = None
        self._stock = 0  # batches that its workers may hold ready
        self._answered = self._waited = 0  # since the switch
        self._learned = False  # from the batch before
        self._elsewhere = False  # a batch came from elsewhere since the last answer
        self._beside = 0  # answers before which one did
        self._in_pass = False  # the second loader's iterator has handed something out
        self._off_s = 0.0
        self._ready = None  # since the switch
        self._pid = os.getpid()
        program.restore_training()
        program.at_first_batch(self.start, self.stop)
        program.at("backward", self.learns)
        program.at("step", self.learns)
        program.around_fetch(self.answer, self.keep)
        program.at("settled", self.is_settled)
        program.at("end", self.close)

    def start(self):
        """Begin to answer: the fix was switched on."""
        if not self._program.usable:
            return  # another part of the fix has refused
        if self._iterator is None:
            self._make()
        self._answered = self._waited = self._beside = 0
        self._learned = True
        self._elsewhere = False
        self._ready = ReadyBatches(self._stock)

    def stop(self):
        """Rest: the fix was switched off, and the workers fill their queues."""
        self._off_s = time.perf_counter()

    def learns(self):
        """Note a backward or an optimizer step."""
        self._learned = True

    def _make(self):
        program = self._program
        loaders = self._program.loaders()
        boundary = program.plan.get("boundary") or {}
        if boundary.get("learned_by") == "batch":
            program.give_up("nothing-shows-learning")
        by_loader = boundary.get("kind") == "loader"
        self._ident = boundary["ident"] if by_loader else loaders.last
        record = None if self._ident is None else loaders.known[self._ident]
        loader = None if record is None else record.loader()
        if loader is None:
            program.give_up("no-loader-feeds-loop")
        program.give_up_for(why_no_second(loader, program.torch, record.writes))
        states = random_states.global_states(program.torch)
        try:
            self._loader = self._made(loader, record, loaders)
            self._iterator = loaders.iterate(self._loader)
        finally:
            # A loader's start draws the seed of its workers, and that of a random order.
            random_states.restore(program.torch, states)
        try:
            self._is_full()
        except (AttributeError, NotImplementedError) as error:  # macOS counts no queue
            self._end(reason("ready-batches-unknown", error=repr(error)))

    def _made(self, loader, record, loaders):
        program = self._program
        arguments = arguments_of(loader, program.torch)
        before = dict(arguments)
        for function in self.functions:
            function(arguments, self._ident)
        if all(arguments[name] is before[name] for name in before):
            program.give_up_for(program.why or reason("loader-unchanged"))
        workers = arguments["num_workers"]
        data = program.torch.utils.data
        alone = not workers and not loader.num_workers
        if alone and isinstance(loader.dataset, data.IterableDataset):
            program.give_up("iterators-share-samples")
        if workers:
            arguments["persistent_workers"] = True
            arguments["timeout"] = arguments["timeout"] or _WAIT_S
        self._stock = workers * (arguments["prefetch_factor"] or 2)
        program.give_up_for(spare_memory.lacking(workers, self._stock * record.batch_bytes))
        return second(loader, arguments, record.place(), program.torch, loaders.untouched_init)

    def answer(self, ident, left):
        """Return (batch,) in place of the training loader's next one; None: that one is fetched.

        (): the epoch ends as it would without this. An evaluation gets batches of its own.
        """
        wanted = ident == self._ident and self._iterator is not None and self._learned
        if not wanted or not self._program.torch.is_grad_enabled():
            return None
        if left is not None and left <= 0:
            return ()
        self._beside += self._elsewhere
        self._elsewhere = False
        if self._beside >= _FEW and 2 * self._beside > self._answered:
            self._end(reason("steps-take-other-batches"))
        try:
            batches = self._next(endless=left is not None)
        except BaseException:
            self.close()
            raise
        self._answered += len(batches)
        self._learned = not batches
        return batches

    def keep(self, ident, batch):
        """Note that a batch was fetched as ever."""
        self._elsewhere = True

    def _next(self, endless):
        """Return (batch,); unless `endless`, () where a pass is over."""
        batch = next(self._iterator, _NO_BATCH)
        over, self._in_pass = self._in_pass and not endless, batch is not _NO_BATCH
        if batch is not _NO_BATCH:
            return (batch,)
        states = random_states.global_states(self._program.torch)
        try:
            self._iterator = self._program.loaders().iterate(self._loader)
            return () if over else (next(self._iterator),)
        except StopIteration:
            raise ValueError("a second pass over its loader has no batches") from None
        finally:
            random_states.restore(self._program.torch, states)

    def is_settled(self):
        """Return whether a block may begin: its stock is used up while on, and full while not."""
        if self._iterator is None:
            return True
        if self._program.on:
            self._waited += 1
            if self._answered < max(self._stock, 1):
                if self._waited > most_iterations(self._stock):
                    self._end(reason("too-few-batches-asked-for"))
                return False
            return not self._stock or self._ready.are_used_up(self._iterator._data_queue.qsize())
        if not self._is_full() and time.perf_counter() - self._off_s > _REFILL_S:
            self._end(reason("queue-not-refilled", most_s=_REFILL_S))
        return self._is_full()

    def _is_full(self):
        """Return whether its workers rest: all that they were asked for lies ready."""
        iterator = self._iterator
        return not self._stock or iterator._data_queue.qsize() >= iterator._tasks_outstanding

    def _end(self, why):
        self.close()
        self._program.give_up_for(why)

    def close(self):
        """End its workers; from here on the program's own batches are handed out."""
        iterator, self._iterator, self._loader = self._iterator, None, None
        if os.getpid() == self._pid:  # a forked child inherits it
            getattr(iterator, "_shutdown_workers", lambda: None)()


def most_iterations(stock):
    """Return how many iterations a queue that holds so many batches is waited for."""
    return _MOST_WAITS[0] * stock + _MOST_WAITS[1]


class ReadyBatches:
    """The batches that an iterator's workers had ready while nobody took any.

    Slower workers fall behind one batch at a time: until `stock` are taken no step waits for data.
    """

    def __init__(self, stock):
        self._stock = stock
        self._levels = []

    def are_used_up(self, level):
        """Return True if it has run dry, or workers keep up; `level`: batches ready now."""
        levels = self._levels
        stock = self._stock
        levels.append(level)
        waited = len(levels) - 1
        keeps_up = waited >= stock and level >= levels[waited - stock]
        return level == 0 or keeps_up or waited >= most_iterations(stock)


def ready_in(iterator):
    """Return the batches that lie ready and that may; None: the iterator has no workers."""
    queue = getattr(iterator, "_data_queue", None)
    workers = getattr(iterator, "_num_workers", 0)
    if queue is None or not workers:
        return None
    try:
        return queue.qsize(), workers * (getattr(iterator, "_prefetch_factor", None) or 2)
    except (NotImplementedError, OSError):  # macOS counts no queue
        return None


def arguments_of(loader, torch):
    """Return the arguments of `DataLoader.__init__` that would make this loader as it is now."""
    cls = torch.utils.data.dataloader.DataLoader
    parameters = inspect.signature(cls.__init__).parameters
    arguments = {name: getattr(loader, name, p.default) for name, p in parameters.items()}
    del arguments["self"]
    arguments["shuffle"] = None  # what it said is its sampler now
    if not loader.num_workers:
        arguments["prefetch_factor"] = None
    return arguments


def second(loader, arguments, later, torch, make):
    """Return a loader of the same class, not iterated yet; raise where a sampler cannot be copied.

    The sampler is a copy and generators are clones: nothing moves that the program's own loader
    draws from. `later`: batches that its first pass leaves out; `make`: torch's own `__init__`.
    """
    arguments = {**arguments, "sampler": None, "batch_sampler": None}
    batched = loader.batch_sampler is not None
    name = "batch_sampler" if batched else "sampler"
    sampler, generator = _copied(loader, getattr(loader, name), torch)
    arguments["generator"] = generator
    if not isinstance(loader.dataset, torch.utils.data.IterableDataset):
        arguments[name] = _LaterOn(sampler, later)
        if batched:
            arguments.update(batch_size=1, drop_last=False)  # its sampler knows both
    made = type(loader).__new__(type(loader))
    make(made, **arguments)
    for key, value in vars(loader).items():
        made.__dict__.setdefault(key, value)  # of a subclass
    return made


class _LaterOn:
    """A sampler whose first pass begins where the program's own one stands."""

    def __init__(self, sampler, later):
        self._sampler = sampler
        self._later = later

    def __iter__(self):
        later, self._later = self._later, 0
        return itertools.islice(iter(self._sampler), later, None)

    def __len__(self):
        return len(self._sampler)


def _copied(loader, sampler, torch):
    """Return copies of the sampler and of the loader's generator, which both may share."""
    # What the data set holds is shared: a sampler that knows the data must not copy it.
    shared = {id(held): held for held in _held_by(loader.dataset, torch)}
    generators = random_states.held_generators([sampler, loader.generator], torch, _DEPTH)
    for held in generators:
        if isinstance(held, torch.Generator):  # older ones know no copy
            shared[id(held)] = clone = torch.Generator(device=held.device)
            clone.set_state(held.get_state())
    try:
        return copy.deepcopy((sampler, loader.generator), shared)
    except Exception as error:
        raise ValueError("its sampler cannot be copied: %s" % error) from error


def _held_by(dataset, torch):
    """Return the data set, what it wraps, and what lies in their attributes."""
    plain = (*random_states.SCALARS, torch.Generator)
    values = []
    level = [dataset]
    for _ in range(_DEPTH):
        values += level
        below = [part for value in level for part in parts_of(value, torch) or ()]
        held = [
            attribute for value in level for attribute in getattr(value, "__dict__", {}).values()
        ]
        level = below + [value for value in held if not isinstance(value, plain)]
    return values
