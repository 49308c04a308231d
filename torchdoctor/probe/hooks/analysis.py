"""The steps after the profiler window: hooks too slow for any timing, for a few steps.

Each part stands for itself: one that fails is reported by its name, and the others go on.
"""

import os

from ..fixkit.padded_products import PaddedProducts
from ..measure.sample_check import SampleCheck
from ..measure.training_facts import TrainingFacts
from .kept_graphs import KeptGraphs
from .tensor_calls import TensorCalls

ANALYSED_STEPS = 6
_MOST_ENTRIES = 100_000  # of the memory history: some tens of megabytes


class Analysis:
    """The analysed steps of one process; `loader`: whose fetches separate iterations, or None.

    `steps`: so many are analysed; below ANALYSED_STEPS none are added for the gradients alone.
    """

    def __init__(self, session, loader, steps=ANALYSED_STEPS):
        self._session = session
        self._loader = loader
        self._wanted = steps
        self._steps = 0
        self._calls = TensorCalls(session)
        self._graphs = KeptGraphs(session)
        self._training = TrainingFacts(session, self._calls.quietly)
        self._memory = MemorySnapshot(session)
        self._products = PaddedProducts(session)
        self._samples = SampleCheck(session)

    def start(self, profiler, steps):
        """Install the hooks, and read the profiler window, which had so many steps."""
        hooks = (self._calls, self._graphs, self._training, self._memory)
        self._session.registries += [*hooks, self._products, self._samples]
        self._attempt(self._products.note, profiler, steps)
        for part in hooks:
            self._attempt(part.start)

    def step(self):
        """Note that a step ended; return True once nothing more is to be looked at."""
        if self._steps < self._wanted:
            self._steps += 1
            self._calls.steps = self._graphs.step = self._steps
            if self._steps < self._wanted:
                return False
            for part in (self._calls, self._memory, self._graphs):
                self._attempt(part.stop)
        if self._wanted >= ANALYSED_STEPS and self._training.wants_more():
            return False
        self._training.on = False
        used = [record.batches for record in self._session.loaders.known]
        if any(used):
            busiest = used.index(max(used)) if self._loader is None else self._loader
            self._attempt(self._samples.look, busiest)
        self._attempt(self._products.measure)
        return True

    def _attempt(self, method, *args):
        try:
            method(*args)
        except Exception as error:
            self._session.fail(type(method.__self__).__name__, error)


class MemorySnapshot:
    """Every allocation on a CUDA device, as torch's `memory-<number>.pickle` for its memory_viz."""

    def __init__(self, session):
        self._session = session
        self._torch = session.torch
        self._path = None
        self.on = False

    def start(self):
        """Begin to record, where this torch can and the program does not do so itself."""
        cuda = self._torch.cuda
        recording = getattr(self._torch._C, "_cuda_isHistoryEnabled", None)
        if cuda.is_initialized() and not (recording and recording()):
            # Stacks of Python alone: those of C++ take longer than the steps do.
            cuda.memory._record_memory_history(stacks="python", max_entries=_MOST_ENTRIES)
            self.on = True

    def stop(self):
        """Write the file and end recording."""
        if not self.on:
            return
        self.on = False
        session = self._session
        memory = self._torch.cuda.memory
        path = os.path.join(session.channel, "memory-%d.pickle" % session.number)
        try:
            memory._dump_snapshot(path + ".part")
            os.replace(path + ".part", path)
            self._path = path
        finally:
            memory._record_memory_history(enabled=None)

    def facts(self):
        """Return `memory_snapshot` of the process facts: the file; None: not taken."""
        return {"memory_snapshot": self._path}
