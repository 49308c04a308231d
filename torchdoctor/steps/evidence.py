"""What the events of one thread have shown so far: all that could separate its steps, counted."""

from collections.abc import Collection, Hashable
from typing import NamedTuple

FETCH, OPTIMIZER_BEGIN, OPTIMIZER_END, BACKWARD_BEGIN, BACKWARD_END, GRADIENT = range(6)
BATCH, FORWARD, STEP = range(6, 9)  # a batch that counts as learned; the root model; step()
ENTRY, ENTRY_END = range(9, 11)  # an outermost call of a known entry point
GRADIENTS = "gradients"  # the source of passes that are calls of torch.autograd.grad
# What may separate steps; `entry` and `forward` where nothing is learned.
KINDS = ("loader", "optimizer", "backward", "entry", "forward", "explicit")
NAMED_KINDS = ("loader", "optimizer", "backward", "explicit")  # those that a user may name

FEWEST = 3  # boundaries of a kind, to be sure of it
# An optimizer may step for the first time after that many micro-batches.
FEWEST_WITHOUT_OPTIMIZER = 256  # backward passes
FEWEST_WITHOUT_LEARNING = 64  # forwards: a training may begin with an evaluation
_UPDATES_OF_BATCH = 5  # at most, or no loop over the loader makes them
_LEARNED_OF_STEP = 256  # at most, for a step that the program names
_STEADY = 0.02  # of the busiest optimizer's steps, to count beside it
_CLOSURE = 3  # backward passes within each step of an optimizer, at least


class Candidate(NamedTuple):
    """Something that could separate steps."""

    kind: str  # of `KINDS`
    source: Hashable  # what of that kind: the place of a loader, an optimizer, a model
    boundaries: int  # so far
    fewest: int  # boundaries, to be sure of it


class _Fetches:
    """How often a loader's fetch began what could be a step."""

    def __init__(self) -> None:
        self.boundaries = 0
        self.learned_before = -1  # what had been learned at the last boundary
        self.late = 0  # fetches of any loader since something was learned, summed up
        self.within = 0  # fetches within a call of an entry point

    def add(self, learned: int, late: int, within: bool) -> None:
        """Take in a fetch; it begins a step if something was learned since the last boundary."""
        self.within += within
        if self.learned_before != learned:
            self.boundaries += 1
            self.learned_before = learned
            self.late += late


class Evidence:
    """Counts what could separate steps; `given_up`: (kind, source) of what separates none."""

    def __init__(self, given_up: Collection[tuple[str, Hashable]] = ()) -> None:
        self._given_up = given_up
        self.since: int | None = None  # the time of its first event
        self.learned = 0  # backward passes and optimizer steps that began, but for those within
        self.explicit = 0
        self._loaders: dict[Hashable, _Fetches] = {}
        self._optimizers: dict[Hashable, int] = {}  # their steps
        self._models: dict[Hashable, int] = {}  # their forwards
        self._entries: dict[Hashable, int] = {}  # their calls
        self._in_entry = False
        self._backwards = self._in_optimizer = self._gradients = 0
        self._updates_in_backward = 0
        self._passes_open = 0
        self._stepping = False
        self._late = 0

    @property
    def is_in_pass(self) -> bool:
        """Return whether a backward pass has begun and not ended."""
        return self._passes_open > 0

    def add(self, kind: int, source: Hashable, now: int) -> bool:
        """Take in an event; return whether something was learned, or a step was said to end."""
        if self.since is None:
            self.since = now
        if kind in (OPTIMIZER_BEGIN, OPTIMIZER_END):
            return self._update(kind, source)
        if kind in (BACKWARD_BEGIN, BACKWARD_END):
            return self._backward(kind)
        if kind == GRADIENT:
            return self._gradient()
        if kind == BATCH:
            return self._learn()
        if kind == STEP:
            self.explicit += 1
            return True
        if kind == FETCH:
            self._fetch(source)
        elif kind == FORWARD:
            self._models[source] = self._models.get(source, 0) + 1
        else:
            self._in_entry = kind == ENTRY
            if self._in_entry:
                self._entries[source] = self._entries.get(source, 0) + 1
        return False

    def _learn(self) -> bool:
        self.learned += 1
        self._late = 0
        return True

    def _fetch(self, source: Hashable) -> None:
        self._passes_open = 0  # one that ended by an exception
        self._late += 1
        fetches = self._loaders.get(source)
        if fetches is None:
            fetches = self._loaders[source] = _Fetches()
        fetches.add(self.learned, self._late, self._in_entry)

    def _update(self, kind: int, source: Hashable) -> bool:
        """Take in the begin or end of an optimizer's step; return whether something was learned."""
        if kind == OPTIMIZER_BEGIN:
            self._stepping = True
            return not self._passes_open and self._learn()
        self._stepping = False
        if self._passes_open:
            self._updates_in_backward += 1
        else:
            self._optimizers[source] = self._optimizers.get(source, 0) + 1
        return False

    def _backward(self, kind: int) -> bool:
        """Take in the begin or end of a backward pass; return whether something was learned."""
        if kind == BACKWARD_END:
            self._passes_open = max(self._passes_open - 1, 0)
            return False
        self._passes_open += 1
        if self._passes_open > 1:  # as checkpointing does
            return False
        self._backwards += 1
        self._in_optimizer += self._stepping
        return self._learn()

    def _gradient(self) -> bool:
        if self._backwards:
            return False  # a part of what backward passes go through
        self._gradients += 1
        return self._learn()

    def candidates(self) -> list[Candidate]:
        """Return what could separate steps, the preferred first."""
        candidates = list[Candidate]()
        if self.explicit * _LEARNED_OF_STEP > self.learned:
            candidates.append(Candidate("explicit", None, self.explicit, FEWEST))
        optimizer = self.optimizer()
        steps = self._optimizers.get(optimizer, 0)
        updates = steps if optimizer is not None else self._backwards - self._in_optimizer
        loader = self.loader()
        if loader is not None and self.learned:
            boundaries = self._loaders[loader].boundaries
            if boundaries * _UPDATES_OF_BATCH >= updates:
                candidates.append(Candidate("loader", loader, boundaries, FEWEST))
        entry = self._entry()
        if entry is not None:
            # A loader that its calls make for themselves is no loop of the program's own.
            is_loop = loader is not None and not self._loaders[loader].within
            before = len(candidates) - (bool(candidates) and candidates[-1].kind == "loader")
            candidates.insert(len(candidates) if is_loop else before, entry)
        is_closure = self._in_optimizer >= _CLOSURE * max(steps, 1)
        passes = max(self._backwards, self._gradients)
        if optimizer is not None and not is_closure:
            candidates.append(Candidate("optimizer", optimizer, steps, FEWEST))
        elif passes:
            is_updated = is_closure or self._updates_in_backward or self._optimizers
            fewest = FEWEST if is_updated else FEWEST_WITHOUT_OPTIMIZER
            candidates.append(Candidate("backward", self._passes_of(), passes, fewest))
        if not self.learned and self._models:
            model = max(self._models, key=self._models.__getitem__)  # of equal ones the first
            forwards = self._models[model]
            candidates.append(Candidate("forward", model, forwards, FEWEST_WITHOUT_LEARNING))
        return candidates

    def of_kind(self, kind: str) -> Candidate | None:
        """Return the candidate of a kind that the user named; None: there is none."""
        if kind == "loader":
            source = self.loader()
            boundaries = self._loaders[source].boundaries if source is not None else 0
        elif kind == "optimizer":
            source = self.optimizer()
            boundaries = self._optimizers.get(source, 0)
        else:
            passes = max(self._backwards, self._gradients)
            forwards = sum(self._models.values())
            entries = sum(self._entries.values())
            counts = {"explicit": self.explicit, "backward": passes, "forward": forwards}
            counts["entry"] = entries
            source = self._passes_of() if kind == "backward" else None
            boundaries = counts[kind]
        return Candidate(kind, source, boundaries, FEWEST) if boundaries else None

    def _entry(self) -> Candidate | None:
        """Return the entry point that is called most, of equal ones the first; None: none is."""
        if not self._entries:
            return None
        entry = max(self._entries, key=self._entries.__getitem__)
        return Candidate("entry", entry, self._entries[entry], FEWEST)

    def _passes_of(self) -> str | None:
        return None if self._backwards else GRADIENTS

    def loader(self) -> Hashable:
        """Return the loader whose batches are learned from most often; None: none is."""
        if sum(kind == "loader" for kind, _ in self._given_up) > 1:
            return None  # where each is followed by another one, none is the unit
        loaders = [loader for loader in self._loaders if ("loader", loader) not in self._given_up]
        # Of two loaders zipped, the one that is fetched first begins the step.
        return min(
            loaders,
            key=lambda loader: (-self._loaders[loader].boundaries, self._loaders[loader].late),
            default=None,
        )

    def optimizer(self) -> Hashable:
        """Return the optimizer that steps least often of those that go on; None: there is none."""
        most = max(self._optimizers.values(), default=0)
        slowest: Hashable = None
        for source, steps in self._optimizers.items():
            if ("optimizer", source) in self._given_up or steps < _STEADY * most:
                continue
            # Of equal ones that which was seen last: with it the round ends.
            if slowest is None or steps <= self._optimizers[slowest]:
                slowest = source
        return slowest
