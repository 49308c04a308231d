"""Holds the beliefs in each fix: a prior, and the evidence of every measurement. Pure.

The log speed-up of an arm is held as a grid of values, once for each standard deviation that a pair
may have on this machine. All decisions are averages over joint samples of these grids.
"""

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from torchdoctor.trials import claims
from torchdoctor.trials.claims import SIGMAS, BlockGain, Floats, LogInterval, error_density

Members = frozenset[str]  # names of the arms of a set

SAMPLES = 480
LEAST_GAIN = 0.003  # log speed-up: less does not count as a gain
GRID: Floats = 0.02 * np.sinh(np.linspace(-math.asinh(50.0), math.asinh(200.0), 221))
_ZERO = int(np.argmin(np.abs(GRID)))
GRID[_ZERO] = 0.0
_WIDTH = np.gradient(GRID)
_NO_EFFECT = 0.6  # of the probability not to help: exactly nothing; the rest is a loss
_LOSS = 0.3  # mean of a loss: many are small, but one worker or bfloat16 may halve the speed
_BEYOND_CEILING = 0.03  # part of a gain that the ceiling does not bound: shares are known roughly
_LARGEST_CEILING = 3.5  # log speed-up
# Another setting of the same fix, for each doubling between them.
_NEIGHBOUR_ERROR = 0.05
_NEIGHBOUR_PART = 0.25
_SET_ERROR, _SET_PART = 0.02, 0.05  # between a set's gain and the promise of its members
# Samples in which members hinder each other, and by what part of a large gain.
_FIGHTING, _FIGHT_ERROR = np.arange(SAMPLES) % 20 == 0, 0.4


@dataclass(frozen=True, kw_only=True)
class Arm:
    """A candidate as it is known before anything was measured."""

    name: str  # unique
    fixes: frozenset[str]  # ids that it applies; arms that share one exclude each other
    family: Members = frozenset()  # its main fix, and those within it; empty: it has no relatives
    setting: float = 0.0  # a number, such as 4 workers
    phases: frozenset[str] = frozenset()  # of the step, that it works on; empty: not known
    p_helps: float = 0.35  # probability that it gains anything
    ceiling: float | None = None  # the speed-up at most, by the share of the step; None: not known
    risk: int = 0  # 0 same result, 1 rounding or order, 2 lower precision, 3 changes training
    owed: bool = False  # it is made for what was measured as a good part of the step
    corrects: bool = False  # without it results are wrong: it is owed before all else
    switches: bool = False  # it can be switched on and off in a running program
    once_s: float = 0.0  # one-time cost of its first launch (compiling) in seconds
    may_reseed: bool = False  # only other seeds are likely to tell whether training changes
    plain: Members = frozenset()  # the arm without the fixes that only go with it

    @property
    def rank_of_correction(self) -> float:
        """Return what comes first: what corrects results and does least beside it."""
        return len(self.fixes) if self.corrects else math.inf


@dataclass(frozen=True, kw_only=True)
class Step:
    """The observed step: the share of each phase, and the phases of which the best fix counts."""

    shares: Mapping[str, float] = field(default_factory=dict)
    competing: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Results:
    """The measurements so far."""

    # Log speed-ups of each set's pairs against the untouched program, those of its patch included.
    pairs: Mapping[Members, Sequence[float]] = field(default_factory=dict)
    patched: Mapping[Members, Sequence[float]] = field(default_factory=dict)  # of the patch alone
    makes_patches: bool = False  # patches are made and measured
    by_hand: frozenset[Members] = frozenset()  # sets of which no patch can be made, or runs
    errors: Mapping[Members, float] = field(default_factory=dict)  # of these by their own rounds
    blocks: Mapping[str, BlockGain] = field(default_factory=dict)  # switched within one launch
    failed: frozenset[str] = frozenset()  # arms that failed, were refused, or change training
    failed_sets: Sequence[Members] = ()  # the same of sets, though of no member alone
    open_training: frozenset[Members] = frozenset()  # only other seeds tell whether it changed
    too_dear: frozenset[Members] = frozenset()  # the next pair of these does not fit
    switch_launches: int = 0  # how often arms were switched
    seeds_done: bool = False  # launches with other seeds were made, or cannot be
    side_by_side: bool = True  # both launches of a pair meet the same load

    def measured(self, name: str) -> bool:
        """Return whether an arm was measured by itself."""
        return name in self.blocks or frozenset([name]) in self.pairs


def prior_mass(arm: Arm) -> Floats:
    """Return the probability of each value of `GRID` before anything was measured."""
    top = math.log(arm.ceiling) if arm.ceiling else _LARGEST_CEILING
    share = 1.0 - math.exp(-min(max(top, 0.0) + 0.05, _LARGEST_CEILING))
    gains = GRID > 0
    most = -math.log(1 - share)
    gain = np.where(gains & (most > GRID), np.exp(-GRID) / share, 0.0)
    gain = gain + _BEYOND_CEILING * np.where(gains, np.exp(-GRID / 0.5) / 0.5, 0.0)
    loss = np.where(GRID < 0, np.exp(GRID / _LOSS), 0.0)
    helps = arm.p_helps * min(max(top, 0.0) / 0.05 + _BEYOND_CEILING, 1.0)  # of 5 % or less rarely
    lost = (1 - _NO_EFFECT) * (1 - helps)
    mass = helps * _normalised(gain * _WIDTH) + lost * _normalised(loss * _WIDTH)
    mass[_ZERO] += _NO_EFFECT * (1 - helps)
    return mass


def _gain_evidence(gain: float, error: float, sigma_part: float) -> Floats:
    """Return the log evidence of a measured gain: rows for `SIGMAS`, columns for `GRID`.

    `sigma_part`: part of a pair's sigma that is in its error.
    """
    gain = min(max(gain, GRID[0]), GRID[-1])  # beyond the grid no value would be likelier
    sigma = np.hypot(sigma_part * SIGMAS, error)
    return np.asarray(np.log(error_density(gain - GRID[None, :], sigma[:, None]) + 1e-9))


class Beliefs:
    """Joint samples of the machine's sigma and of every arm's gain, given all results."""

    def __init__(self, arms: Sequence[Arm], step: Step, results: Results, seed: int) -> None:
        self.arms = {arm.name: arm for arm in arms}
        self.step = step
        self.results = results
        rows = np.ones((len(SIGMAS), 1))
        self._grids = {arm.name: rows * np.log(prior_mass(arm) + 1e-12) for arm in arms}
        for name, *measured in self._observations():
            self._grids[name] += _gain_evidence(*measured)
        self._evidence = {
            name: np.logaddexp.reduce(grid, axis=1) for name, grid in self._grids.items()
        }
        self._gains: dict[Members, Floats] = {}
        self._draw(np.random.default_rng([seed, 5]))

    def _observations(self) -> Iterator[tuple[str, float, float, float]]:
        """Yield arm, gain, error and part of sigma of all that was measured of single arms."""
        for members, logs in self.results.pairs.items():
            if len(members) != 1:
                continue
            (name,) = members
            for log in logs:
                yield name, log, self.results.errors.get(frozenset([name]), 0.0), 1.0
                yield from self._neighbours(name, log, _NEIGHBOUR_ERROR)
        for name, blocks in self.results.blocks.items():
            if name in self.arms:
                yield name, blocks.gain, blocks.error, claims.BLOCK_SIGMA
                error = max(blocks.error, _NEIGHBOUR_ERROR)
                yield from self._neighbours(name, blocks.gain, error)

    def _neighbours(
        self, name: str, gain: float, error: float
    ) -> Iterator[tuple[str, float, float, float]]:
        """Yield what a measured arm says of others of its fix, as far as the next measured."""
        arm = self.arms[name]
        arms = self.arms.values()
        measured = [
            other for other in arms if other is not arm and self.results.measured(other.name)
        ]
        for other in arms:
            if other is arm or not (other.family and other.family <= arm.family):
                continue
            low, high = sorted((arm.setting, other.setting))
            nearer = [
                arm for arm in measured if other.family <= arm.family and low <= arm.setting <= high
            ]
            apart = _apart(arm, other)
            if other not in nearer and all(_apart(arm, other) >= apart for arm in nearer):
                more = _NEIGHBOUR_PART * apart * max(abs(gain), 0.1)
                yield other.name, gain, error + more, 1.0

    def sigma_log(self, without: Members | None = None) -> Floats:
        """Return the log weight of each of `SIGMAS` by all but the pairs of a set."""
        error = min((block.error for block in self.results.blocks.values()), default=1.0)
        log = claims.sigma_prior_log(self.results.side_by_side) + claims.block_evidence(error)
        for name, evidence in self._evidence.items():
            if without != frozenset([name]):
                log = log + evidence
        for members, logs in self.results.pairs.items():
            if len(members) > 1 and members != without and len(logs) > 1:
                log = log + claims.spread_evidence(tuple(logs))
        return np.asarray(log - log.max())

    def _draw(self, random: np.random.Generator) -> None:
        weights = _normalised(np.exp(self.sigma_log()))
        units = random.random((max(len(self.arms), 1), SAMPLES))
        rows = np.searchsorted(np.cumsum(weights)[:-1], (np.arange(SAMPLES) + 0.5) / SAMPLES)
        random.shuffle(rows)
        self.sigma = SIGMAS[rows]
        self.gain_of: dict[str, Floats] = {}
        for unit, (name, grid) in zip(units, self._grids.items(), strict=False):
            mass = np.exp(grid - grid.max(axis=1, keepdims=True))
            total = np.cumsum(mass, axis=1)
            total /= total[:, -1:]
            column = (total[rows] < unit[:, None]).sum(axis=1).clip(0, len(GRID) - 1)
            self.gain_of[name] = GRID[column]
        log = np.zeros(SAMPLES)
        for members, logs in self.results.pairs.items():
            if len(members) > 1:
                total, error = self._promise(members)
                error = np.hypot(error, self._pairs_error(members))
                log = log + np.log(error_density(np.median(logs) - total, error) + 1e-6)
        self.weight = _normalised(np.exp(log - log.max()))

    def _pairs_error(self, members: Members) -> Floats:
        """Return samples of the standard deviation of the middle of a set's pairs."""
        error = max(self.results.errors.get(members, 0.0), 0.01)
        return np.asarray(np.hypot(self.sigma, error) / math.sqrt(len(self.results.pairs[members])))

    def gain(self, members: Members) -> Floats:
        """Return samples of the log speed-up of an arm, or of a set."""
        if members not in self._gains:
            several = len(members) > 1
            self._gains[members] = self._set_gain(members) if several else self._promise(members)[0]
        return self._gains[members]

    def _set_gain(self, members: Members) -> Floats:
        """Return samples of a set's promise, and what its pairs make of it."""
        total, error = self._promise(members)
        if logs := self.results.pairs.get(members):
            measured = self._pairs_error(members)
            weight = error**2 / (error**2 + measured**2)
            total = total + weight * (np.median(logs) - total)
            error = error * np.sqrt(1 - weight)
        chance = np.random.default_rng(zlib.crc32(" ".join(sorted(members)).encode()))
        noise = chance.normal(0, 1, SAMPLES)
        return np.asarray(total + error * (noise - noise.mean()))

    def _promise(self, members: Members) -> tuple[Floats, Floats]:
        """Return the sum of the members' gains and a set's error: shares add up, rivals do not."""
        total = np.zeros(SAMPLES)
        anywhere = []
        removed: dict[str, Floats] = {}
        for name in sorted(members):
            gain = self.gain_of[name]
            phases = self.arms[name].phases
            total = total + np.minimum(gain, 0.0)
            part = 1.0 - np.exp(-np.maximum(gain, 0.0))
            if not phases:
                anywhere.append(part)
                continue
            phase = max(sorted(phases), key=lambda each: self.step.shares.get(each, 0.0))
            if phase not in removed:
                removed[phase] = part
            elif phase in self.step.competing:
                removed[phase] = np.maximum(removed[phase], part)
            else:  # each takes its part of the time that the other left
                whole = max(sum(self.step.shares.get(each, 0.3) for each in phases), 0.02)
                left = np.maximum(1.0 - removed[phase] / whole, 0.0)
                removed[phase] = removed[phase] + part * left
        waits = min(sum(self.step.shares.get(phase, 0.0) for phase in self.step.competing), 0.98)
        waited = waits - sum(removed.get(phase, 0.0) for phase in self.step.competing)
        left = np.maximum(1.0 - sum(removed.values(), np.zeros(SAMPLES)), 0.02)
        waited = np.clip(waited, 0.0, left)
        rest = left - waited
        for part in anywhere:  # it shortens what is no wait, and waits only if it gains still more
            rest = rest * (1.0 - np.minimum(part / (1.0 - waits), 1.0))
            waited = waited * (1.0 - np.maximum(part - 1.0 + waits, 0.0) / (waits + 1e-9))
        total = total - np.log(np.maximum(waited + rest, 0.01))
        error = _SET_ERROR * (len(members) - 1) + _SET_PART * np.abs(total)
        return total, np.where(_FIGHTING, _FIGHT_ERROR * np.maximum(np.abs(total), 1.0), error)

    def mean_gain(self, members: Members) -> float:
        """Return the expected log speed-up of a set."""
        return float(self.weight @ self.gain(members))

    def adding(self, members: Members, name: str) -> Floats:
        """Return for each sample whether an arm adds to a set, itself and what goes with it."""
        best = np.maximum(self.gain(self.arms[name].plain), 0.0)
        for rival in members - {name}:
            if self.compete(rival, name):
                best = np.maximum(best, self.gain_of[rival])
        adds = self.gain_of[name] > best + LEAST_GAIN
        if members in self.results.pairs and len(members) > 1:
            # Where members hinder each other, what one gains alone says little of the set.
            pair_gains = [
                self.gain(pair) for pair in self.results.pairs if pair <= members - {name}
            ]
            most = np.max([np.zeros(SAMPLES), *pair_gains], axis=0)
            adds = np.where(_FIGHTING, self.gain(members) > most + LEAST_GAIN, adds)
        return np.asarray(adds)

    def p_adds(self, members: Members, name: str) -> float:
        """Return the probability that an arm adds to a set."""
        return float(self.weight @ self.adding(members, name))

    def p_helps(self, name: str) -> float:
        """Return the probability that an arm gains by itself."""
        return float(self.weight @ (self.gain_of[name] > LEAST_GAIN))

    def p_within(self, name: str, delta: float) -> float:
        """Return the probability that an arm changes the log speed by `delta` at most."""
        return float(self.weight @ (np.abs(self.gain_of[name]) <= delta))

    def quantile(
        self, members: Members, probability: float, without: Members = frozenset()
    ) -> float:
        """Return the log speed-up over another set that a set stays below so probably."""
        gain = self.gain(members) - self.gain(without)
        order = np.argsort(gain)
        place = int(np.searchsorted(np.cumsum(self.weight[order]), probability))
        return float(gain[order][min(place, SAMPLES - 1)])

    def compete(self, name: str, rival: str) -> bool:
        """Return whether the better of two arms does what the other does."""
        both = self.arms[name].phases & self.arms[rival].phases & self.step.competing
        return self.exclude(name, rival) or bool(both)

    def exclude(self, name: str, rival: str) -> bool:
        """Return whether two arms share a fix, so that no set can hold both."""
        return bool(self.arms[name].fixes & self.arms[rival].fixes)

    def claim(self, members: Members) -> LogInterval | None:
        """Return the interval of a set by its own pairs, and its blocks; None: it had no pair."""
        logs = self.results.pairs.get(members)
        error = self.results.errors.get(members, 0.0)
        weight = self.sigma_log(without=members)
        blocks = self.blocks(members)
        return claims.claim_interval(logs, weight, error, blocks) if logs else None

    def blocks(self, members: Members) -> BlockGain | None:
        """Return what blocks within one launch say of a single arm; None: nothing, or a set."""
        return self.results.blocks.get(next(iter(members))) if len(members) == 1 else None


def _apart(arm: Arm, other: Arm) -> float:
    """Return the doublings between the settings of two arms; what goes with them counts as one."""
    ratio = (other.setting + 0.5) / (arm.setting + 0.5)
    return abs(math.log2(ratio)) + (arm.fixes != other.fixes)


def _normalised(values: Floats) -> Floats:
    return np.asarray(values / max(values.sum(), 1e-12))
