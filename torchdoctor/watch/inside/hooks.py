"""The hooks of a watched process: few, small, and passed through once `watch.on` is False.

Unlike the probe's own they ask nothing of the program's data sets, losses on a device, or models.
"""

import functools
import weakref
from _thread import get_ident
from importlib import import_module
from threading import local
from time import perf_counter_ns

from ...probe import places, step_log, wrapping
from ...probe.hooks import copy_hooks, gradient_hooks, model_hooks, scaled_losses
from ...probe.measure.batch_sizes import BatchSizes
from .event_rows import CHECKPOINT_BEGIN, CHECKPOINT_END

_LEARNT_SIZES = 20  # batches
_MOST_SHAPES = 512
_LOSS_EVERY_NS = 20_000_000
_DEVICE_LOSS_EVERY_NS = 1_000_000_000
_COLLECTIVES = (
    "all_reduce",
    "barrier",
    "broadcast",
    "all_gather",
    "all_gather_into_tensor",
    "reduce",
    "reduce_scatter_tensor",
    "reduce_scatter",
    "all_to_all",
    "all_to_all_single",
)


class Loaders:
    """The data loaders of the process, numbered; `rows` tells of each."""

    def __init__(self, watch):
        self._watch = watch
        # By identity: a program's loader may have no hash.
        self._numbers = import_module("torch.utils.weak").WeakIdKeyDictionary()
        # [place, location, BatchSizes, batches to learn from, workers, batch size, it is kept to]
        self.rows = []
        self._making = set()  # (thread, loader) that make an iterator which is noted already

    def made(self, loader, location):
        """Note a new loader; return its number."""
        number = self._numbers[loader] = len(self.rows)
        sampler = getattr(loader, "sampler", None)
        batches = getattr(loader, "batch_sampler", None)
        # One function often makes both loaders: that of an evaluation does not shuffle.
        order = type(sampler), getattr(sampler, "shuffle", None)
        place = (location["file"], location["line"], *order) if location else number
        size = getattr(loader, "batch_size", None) or getattr(batches, "batch_size", None)
        workers = getattr(loader, "num_workers", None)
        self.rows.append([place, location, BatchSizes(size), _LEARNT_SIZES, workers, size, True])
        return number

    def place_of(self, number):
        """Return where and how a loader was made: made like that again and again, it is one."""
        return self.rows[number][0]

    def install(self):
        """Wrap construction, iteration and fetching."""
        data = self._watch.torch.utils.data
        wrapping.wrap(data.DataLoader, "__init__", self._init)
        wrapping.wrap(data.DataLoader, "__iter__", self._iter)
        # For those that go on with an iterator which they made by it.
        wrapping.wrap(data.DataLoader, "_get_iterator", self._iter)
        wrapping.wrap(data.dataloader._BaseDataLoaderIter, "__next__", self._next)

    def _init(self, old):
        made = self._watch.guarded(lambda loader: self.made(loader, places.made_here(loader)))

        def __init__(loader, *args, **kwargs):
            try:
                old(loader, *args, **kwargs)
            except BaseException as error:
                self._watch.hide_frames(error)
                raise
            if self._watch.on or self._watch.resting:
                made(loader)

        return __init__

    def _iter(self, old):
        watch = self._watch
        add = self._watch.log.add
        making = self._making
        compiling = watch.torch.compiler.is_dynamo_compiling

        @functools.wraps(old)
        def begin(loader):
            if compiling() or (get_ident(), id(loader)) in making:
                return old(loader)
            if watch.resting:
                watch.wake()  # what begins while nothing is hooked would never be seen
            if not watch.on:
                return old(loader)
            number = self._numbers[loader] if loader in self._numbers else self.made(loader, None)
            add(step_log.LOADER_START_BEGIN, number)
            making.add((get_ident(), id(loader)))
            try:
                iterator = old(loader)
            except BaseException as error:
                watch.hide_frames(error)
                raise
            finally:
                making.discard((get_ident(), id(loader)))
                add(step_log.LOADER_START_END, number)
            if hasattr(iterator, "__dict__"):  # a program's own may be a generator
                iterator._torchdoctor_ident = number
            return iterator

        return begin

    def _next(self, old):
        watch = self._watch
        add = self._watch.log.add
        rows = self.rows
        begin = step_log.FETCH_BEGIN
        end = step_log.FETCH_END
        exhausted = step_log.EXHAUSTED
        compiling = watch.torch.compiler.is_dynamo_compiling

        def __next__(iterator):
            if compiling():
                return old(iterator)
            number = getattr(iterator, "_torchdoctor_ident", None)
            if number is None or not watch.on:
                return old(iterator)
            try:
                add(begin, number)
            except Exception as error:
                watch.fail("fetch", error)
            try:
                batch = old(iterator)
            except BaseException as error:
                add(end, number, exhausted)
                if not isinstance(error, StopIteration):
                    watch.hide_frames(error)
                raise
            try:
                row = rows[number]
                left = row[3]
                if left < 0:  # batches of the size that was asked for, but an epoch's last
                    add(end, number, row[5])
                elif left == 0:
                    add(end, number, row[2].of(batch))
                else:
                    samples = row[2].learn(batch)
                    add(end, number, samples)
                    row[6] = row[6] and samples == row[5]
                    row[3] = left - 1 if left > 1 else -int(row[6])
                    if not watch.models.settled:
                        watch.models.discover()
            except Exception as error:
                watch.fail("fetch", error)
            return batch

        return __next__


class NestingOfThread(local):
    """What is open in one thread: calls of root modules, of entry points, of what generates."""

    calls = 0
    entered = generating = False

    def noted(self, *_):
        """Return True: a call within another one of the same thread."""
        return True


class Calls(model_hooks._Calls):
    """Outermost calls of root modules; notes the largest input where they train, or may infer."""

    def __init__(self, watch, models):
        super().__init__(watch, models)
        self._tensor, self._shapes = watch.torch.Tensor, set()
        self._inference = watch.inference

    def _begin(self, root, module, args, kwargs):
        root.forwards += 1
        flags = self._grad_enabled() | module.training << 1
        log = self._session.log
        if flags == 3 or self._inference.looks:
            values = (*args, *kwargs.values()) if kwargs else args
            log.forward(root.ident, flags, *self._largest(values))
        else:
            log.forward(root.ident, flags)
        return flags

    def note_earlier(self, root, calls):
        """Log calls that have ended, where it is still open what a step is."""
        root.forwards += len(calls)
        for began_ns, ended_ns, flags in calls:
            self._session.log.forward_earlier(root.ident, flags, began_ns, ended_ns)

    def _largest(self, values):
        """Return the largest tensor's elements, its rows, and whether its shape is new."""
        most = 0
        largest = None
        tensor = self._tensor
        if len(values) == 1 and type(values[0]) is tensor:
            largest = values[0]
            most = largest.numel()
            values = ()
        for value in values:
            parts = (value,)
            if isinstance(value, dict):
                parts = value.values()
            elif isinstance(value, (list, tuple)):
                parts = value[:8]
            for part in parts:
                if isinstance(part, tensor) and part.numel() > most:
                    most = part.numel()
                    largest = part
        if not most:
            return 0, 0, False
        try:
            shape = largest.shape
        except RuntimeError:  # it has none, as one of nested rows
            return most, 0, False
        is_new = shape not in self._shapes and len(self._shapes) < _MOST_SHAPES
        if is_new:
            self._shapes.add(shape)
        return most, shape[0] if len(shape) > 1 else 0, is_new


class Backwards:
    """Backward passes, with the loss where reading it waits for nothing."""

    def __init__(self, watch):
        self._watch = watch
        self._on_device = None
        self._scaled_losses = scaled_losses.ScaledLosses(watch)
        self._due_ns = self._device_due_ns = 0

    def install(self):
        """Wrap `torch.autograd.backward`, which `Tensor.backward` calls, and `autograd.grad`."""
        wrapping.wrap(self._watch.torch.autograd, "backward", self.around)
        self._scaled_losses.install()
        gradient_hooks.install(self._watch, self)

    def begin_replay(self):
        """Note that one begins which was captured into a graph: its model ran there."""
        self._watch.models.seen_forward = True
        self.begin()

    def begin(self, retain_graph=False):
        """Note that a backward pass begins; look for models that are not known yet."""
        models = self._watch.models
        if not models.settled:
            models.discover()
        elif not models.seen_forward:
            models.look_again()
        models.seen_forward = False
        self._watch.log.last_code = step_log.BACKWARD_BEGIN
        self._watch.log.add(step_log.BACKWARD_BEGIN)

    def end(self, tensors):
        """Note that it ended; `tensors`: what it began at."""
        exchanges = self._watch.exchanges
        log = self._watch.log
        log.last_code = 0
        now = log.add(step_log.BACKWARD_END)
        if exchanges.entry_ns:
            log.exchanged(exchanges.entry_ns, True)
            exchanges.entry_ns = 0
        if now > self._due_ns:
            self._due_ns = now + _LOSS_EVERY_NS
            self._keep(tensors, now)

    end_replay = end

    def around(self, old):
        """Return the wrapper of `torch.autograd.backward`."""
        watch = self._watch
        log = self._watch.log
        graphs = self._watch.graphs
        compiling = watch.torch.compiler.is_dynamo_compiling

        def backward(tensors, *args, **kwargs):
            if compiling() or not watch.on:
                return old(tensors, *args, **kwargs)
            captured = graphs.notes is not None and graphs.capturing()
            try:
                if not captured:
                    self.begin()
            except Exception as error:
                watch.fail("backward", error)
            graphs.within += 1
            try:
                result = old(tensors, *args, **kwargs)
            except BaseException as error:
                watch.hide_frames(error)
                if not captured:
                    log.last_code = 0
                    log.add(step_log.BACKWARD_END)
                raise
            finally:
                graphs.within -= 1
            try:
                if captured:
                    graphs.add(self.begin_replay, self.end_replay, scaled_losses.first_of(tensors))
                else:
                    self.end(tensors)
            except Exception as error:
                watch.fail("backward", error)
            return result

        return backward

    def _keep(self, tensors, now):
        """Read a scalar loss of the CPU; copy another one each second, and read it when it came."""
        loss = scaled_losses.first_of(tensors)
        if getattr(loss, "numel", None) is None or loss.numel() != 1:
            return
        loss = self._scaled_losses.unscaled(loss)
        if loss.is_cpu:
            self._watch.keeper.loss(loss.item())
            return
        if self._watch.accelerator.is_capturing():
            return  # what another thread captures
        kept = self._on_device
        if kept is not None and kept[1].query():
            self._watch.keeper.loss(kept[0].item())
            self._on_device = kept = None
        if kept is None and now > self._device_due_ns and loss.device.type == "cuda":
            self._device_due_ns = now + _DEVICE_LOSS_EVERY_NS
            torch = self._watch.torch
            place = torch.empty((), dtype=torch.float32, pin_memory=True)
            place.copy_(loss.detach().reshape(()), non_blocking=True)
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(loss.device))
            self._on_device = place, event


class Exchanges:
    """When this rank was ready for its exchange with the others, and when that had ended."""

    def __init__(self, watch):
        self._watch, self._hooked = watch, set()
        self.entry_ns = 0  # of the exchange that ends with the backward pass

    def install(self):
        """Wrap the collectives of `torch.distributed` that a program calls itself."""
        watch = self._watch
        distributed = self._watch.torch.distributed
        if distributed.is_available():
            for name in _COLLECTIVES:
                wrapping.wrap(distributed, name, self._around)
            # A rank that never comes to its first step is missed all the same.
            wrapping.before(watch, distributed, "init_process_group", watch.keeper.start)
            # Ray kills its workers right after it.
            wrapping.before(watch, distributed, "destroy_process_group", watch.keeper.leaves)

    def _around(self, old):
        watch = self._watch
        compiling = self._watch.torch.compiler.is_dynamo_compiling

        @functools.wraps(old)
        def collective(*args, **kwargs):
            if compiling() or not watch.on:
                return old(*args, **kwargs)
            entry_ns = perf_counter_ns()
            try:
                work = old(*args, **kwargs)
            except BaseException as error:
                watch.hide_frames(error)
                raise
            watch.log.exchanged(entry_ns, False, not kwargs.get("async_op"))
            return work

        return collective

    def watch_model(self, module):
        """Hook the gradient that DistributedDataParallel has ready last, its first parameter's."""
        torch = self._watch.torch
        if not isinstance(module, torch.nn.parallel.DistributedDataParallel):
            return
        parameter = next((p for p in module.parameters() if p.requires_grad), None)
        if parameter is None or id(module) in self._hooked:
            return
        self._hooked.add(id(module))
        with torch.enable_grad():  # a node of the graph: the parameter itself stays as it is
            node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
        owner = weakref.ref(module)

        def ready(_):
            module = owner()
            if self._watch.on and module is not None and module.require_backward_grad_sync:
                self.entry_ns = perf_counter_ns()

        node.register_prehook(self._watch.guarded(ready))


def install_optimizers(watch, rests):
    """Wrap the steps of optimizers; `rests` counts each step, also while resting."""
    steps = _OptimizerSteps(watch, rests)
    watch.optimizers = steps.numbers
    wrapping.wrap(watch.torch.optim.Optimizer, "__init__", functools.partial(_made, watch))
    wrapping.around_steps(watch.torch, steps.begins, steps.ended, steps.failed)


class _OptimizerSteps:
    """The notes of `Optimizer.step`, which begins, and ends or fails."""

    def __init__(self, watch, rests):
        self.numbers = weakref.WeakKeyDictionary()
        self._watch = watch
        self._rests = rests
        self._graphs = watch.graphs
        self._last = lambda: None  # the optimizer of the last step: a look at all costs more
        self._last_number = 0

    def _number_of(self, optimizer):
        if self._last() is not optimizer:
            self._last = weakref.ref(optimizer)
            self._last_number = self.numbers.setdefault(optimizer, len(self.numbers))
        return self._last_number

    def begins(self, optimizer):
        watch = self._watch
        graphs = self._graphs
        try:
            graphs.within += 1
            if watch.on and (graphs.notes is None or not graphs.capturing()):
                watch.log.add(step_log.OPTIMIZER_BEGIN, self._number_of(optimizer))
        except Exception as error:
            watch.fail("optimizer", error)

    def ended(self, optimizer):
        watch = self._watch
        graphs = self._graphs
        try:
            graphs.within -= 1
            if graphs.notes is not None and graphs.capturing():
                # The step is computed at each replay of the graph.
                graphs.add(lambda: None, self._replayed, optimizer)
                return
            self._rests.updates += 1
            if watch.resting:
                self._rests.updated()
            if watch.on:
                watch.log.add(step_log.OPTIMIZER_END, self._number_of(optimizer))
        except Exception as error:
            watch.fail("optimizer", error)

    def failed(self, _):
        self._graphs.within -= 1

    def _replayed(self, optimizer):
        if optimizer is not None:
            self.begins(optimizer)
            self.ended(optimizer)


def _made(watch, old):
    @watch.guarded
    def made(optimizer):
        watch.optimizers_made.add(optimizer)
        watch.models.look_early()  # the program may infer all the same, and never learn

    def __init__(self, *args, **kwargs):
        old(self, *args, **kwargs)
        made(self)

    return __init__


def install_checkpoints(watch, importing):
    """Time what writes checkpoints: `torch.save` and safetensors."""

    def timed(owner, name):
        def make(old):
            def save(*args, **kwargs):
                if not watch.on:
                    return old(*args, **kwargs)
                began = watch.log.add(CHECKPOINT_BEGIN)
                try:
                    return old(*args, **kwargs)
                except BaseException as error:
                    watch.hide_frames(error)
                    raise
                finally:
                    watch.event("checkpoint", "", (watch.log.add(CHECKPOINT_END) - began) / 1e9)

            return save

        wrapping.wrap(owner, name, make)

    timed(watch.torch, "save")
    importing.when_imported("safetensors.torch", lambda module: timed(module, "save_file"))


def install_pauses(watch):
    """Time copies to a device, and the garbage collector."""
    copy_hooks.install(watch)
    copy_hooks.install_pauses(watch)
