"""Decides online what separates two steps, by the rule of `observe.step_finding`.

A step is one batch of the loader that the training goes through; without one it is one step of the
optimizer that steps least often, or one backward pass; `torchdoctor.step()` overrules all.
"""

FEWEST = 3  # boundaries


class Candidates:
    """Counts what could separate steps, since the last decision."""

    def __init__(self, wanted=None):
        self._wanted = wanted  # the kind that the user named
        self.restart()

    def restart(self):
        """Count anew."""
        self.loaders = {}  # by place: [boundaries, learned at the last one, events since learning]
        self.optimizers = {}  # by number: steps
        self.backwards = self.explicit = self.learned = 0
        self.stepping, self.nested = False, 0  # an optimizer steps; backward passes within
        self.late = 0  # fetches since something was learned

    def fetch(self, place):
        """Note that a fetch begins; True: something was learned since the place's last one."""
        row = self.loaders.get(place)
        if row is None:
            row = self.loaders[place] = [0, -1, 0]
        self.late += 1
        if row[1] == self.learned:
            return False
        row[0] += 1
        row[1] = self.learned
        row[2] += self.late
        return True

    def learn(self):
        """Note that a backward pass or an optimizer step begins."""
        self.learned += 1
        self.late = 0

    def decide(self):
        """Return (kind, place or number) of what separates steps; None: nothing does yet."""
        optimizer = self._optimizer()
        updates = self.optimizers[optimizer] if optimizer is not None else self.backwards
        loader = self._loader()
        counts = {
            "explicit": (self.explicit, None),
            "loader": (self.loaders[loader][0] if loader is not None else 0, loader),
            "optimizer": (self.optimizers.get(optimizer, 0), optimizer),
            "backward": (self.backwards, None),
        }
        enough = {kind for kind, (count, _) in counts.items() if count >= FEWEST}
        if self._wanted is not None:
            kind = self._wanted
        elif "explicit" in enough:
            kind = "explicit"
        elif "loader" in enough and counts["loader"][0] >= min(20, 0.2 * updates):
            kind = "loader"
        elif self.nested >= 3 * max(updates, 1):
            kind = "backward"  # LBFGS: a few steps of many backwards each
        else:
            kind = "optimizer" if optimizer is not None else "backward"
        return (kind, counts[kind][1]) if kind in enough else None

    def _loader(self):
        learned_from = {place: row for place, row in self.loaders.items() if row[0] >= FEWEST}
        # Of two loaders zipped, the one that is fetched first begins the step.
        return min(
            learned_from,
            key=lambda place: (-learned_from[place][0], learned_from[place][2]),
            default=None,
        )

    def _optimizer(self):
        most = max(self.optimizers.values(), default=0)
        steady = {number: n for number, n in self.optimizers.items() if n >= 0.02 * most}
        return min(steady, key=steady.get, default=None)
