"""Name the cause of a slower program: by the part of the step that grew, and what grew with it.

The rules are asked from the top; a rule above explains what rules below it would also find.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torchdoctor.schema.figures import percent, seconds
from torchdoctor.schema.units import several
from torchdoctor.watch.recording import PHASES

_MOST = 0.5  # of the added time: what explains the change
_COMPUTES = 0.3  # of the added wait for data: workers that are busy, or a process without a CPU
_SHOWN = {
    "wait": ("waiting for data", "data_loader"),
    "copy": ("copies to the device", "memcpy"),
    "forward": ("forward", "gpu"),
    "backward": ("backward", "runtime"),
    "optimizer": ("optimizer", "cpu"),
    "evaluation": ("evaluation", "communication"),
    "checkpoint": ("checkpoints", "memset"),
    "gc": ("garbage collection", "other"),
    "other": ("other code", "other"),
}
PHASE_NAMES = {phase: name for phase, (name, _) in _SHOWN.items()}
PHASE_COLOURS = {phase: colour for phase, (_, colour) in _SHOWN.items()}  # of a bar's parts


@dataclass(frozen=True)
class Change:
    """Medians of the columns of `means.MEANS` before and after a change; NaN: not measured."""

    before: Mapping[str, float]
    after: Mapping[str, float]
    unit: str = "step"  # what a step is called

    def rise(self, name: str) -> float:
        """Return how much larger a column has become; 0 where it was not measured."""
        rise = self.after[name] - self.before[name]
        return rise if math.isfinite(rise) else 0.0

    def ratio(self, name: str) -> float:
        """Return how many times as large a column has become; 1 where it was not measured."""
        before = self.before[name]
        after = self.after[name]
        known = math.isfinite(before) and math.isfinite(after) and before > 0
        return after / before if known else 1.0

    def share(self, *names: str) -> float:
        """Return the share of the added time of a step that these phases have."""
        return sum(map(self.rise, names)) / max(self.rise("step_s"), 1e-12)

    def explains(self, ratio: float) -> bool:
        """Return whether work that grew by this ratio explains most of the change."""
        return math.log(max(ratio, 1e-9)) >= _MOST * math.log(max(self.ratio("step_s"), 1 + 1e-9))

    def each_step(self, rate: str) -> tuple[float, float]:
        """Return what a rate a second is for each step, before and after."""
        return tuple(x[rate] * x["step_s"] for x in (self.before, self.after))  # type: ignore[return-value]

    def told(self, name: str, figure: Callable[[float], str] = seconds) -> str:
        """Return the two figures as "from 2 ms to 14 ms"."""
        return f"from {figure(self.before[name])} to {figure(self.after[name])}"

    def told_of_each(self, name: str) -> str:
        """Return two times as "from 2 ms to 14 ms a step"."""
        return f"{self.told(name)} a {self.unit}"


@dataclass(frozen=True)
class Cause:
    """What changed with the program: a clause, and a sentence that says what to do."""

    name: str
    clause: str
    todo: str


Rule = Callable[[Change], "Cause | None"]


def cause_of(change: Change) -> Cause:
    """Return the cause of a slower program."""
    return next(filter(None, (rule(change) for rule in RULES)), None) or _phase(change)


def _batch(change: Change) -> Cause | None:
    if not change.explains(change.ratio("samples")):
        return None
    sizes = change.told("samples", "{:,.0f}".format)
    clause = f"batches have grown {sizes} samples, and a sample takes "
    each = change.ratio("step_s") / change.ratio("samples")
    clause += "as long as before" if 0.95 < each < 1.05 else f"{each:.2f}x the time"
    return Cause("batch", clause, "If you did not mean this, look at the batch size of the loader.")


def _sequences(change: Change) -> Cause | None:
    if not change.explains(change.ratio("elements") / change.ratio("samples")):
        return None
    clause = f"the model's inputs have grown {change.told('elements', '{:,.0f}'.format)} numbers"
    todo = "Group samples of similar length, or cut the longest ones."
    return Cause("sequences", f"{clause} a batch of the same number of samples", todo)


def _recompilation(change: Change) -> Cause | None:
    share = max(change.rise("recompiled"), change.rise("new_input"))
    if share < 0.02 or change.share("forward", "backward", "other") < _MOST:
        return None
    units = several(change.unit)
    clause = f"{percent(share)} of the {units} bring a shape that the model never had"
    if change.rise("recompiled") < 0.02 and change.explains(change.ratio("elements")):
        return None  # larger inputs are enough to explain it
    todo = "Pad inputs to a few shapes, or use torch.compile(dynamic=True)."
    then = "for which torch.compile compiles, and cuDNN searches, anew"
    return Cause("recompilation", f"{clause}, {then}", f"{todo} TORCH_LOGS=recompiles tells more.")


def _garbage(change: Change) -> Cause | None:
    if change.share("gc") < 0.4:
        return None
    clause = f"pauses of Python's garbage collector have grown {change.told_of_each('gc')}"
    todo = "Find what makes many objects, or call gc.freeze() before the loop and collect rarely."
    return Cause("gc", clause, todo)


def _memory(change: Change) -> Cause | None:
    todo = "Give the job more memory, or use fewer workers or less caching."
    faults = change.rise("process_major_faults")
    rate = max(change.after["swap_in_bytes"], 0.0)
    swapped = change.rise("process_swapped_bytes") > 4e6 and faults > 5
    if swapped or change.rise("swap_in_bytes") > 256e3:
        speed = f" ({rate / 1e6:.1f} MB/s)" if rate > 1e5 else ""
        return Cause("swapping", f"memory is short, and pages come back from swap{speed}", todo)
    pressed = change.rise("memory_pressure_s") > 0.05 and faults > 5  # that of others is no cause
    if not pressed and faults < 50:
        return None
    return Cause("memory", "memory is short, and pages of files are read again and again", todo)


def _quota(change: Change) -> Cause | None:
    if change.rise("throttled_s") < 0.05:
        return None
    clause = "the CPU quota of its control group stops the program"
    clause += f" ({change.after['throttled_s']:.2g} s of each second, all threads together)"
    todo = "Raise the CPU limit of the container or job, or use fewer threads and workers."
    return Cause("quota", clause, todo)


def _clocks(change: Change) -> Cause | None:
    todo = "Look at cooling, power limits and neighbours: nvidia-smi -q -d PERFORMANCE."
    if change.ratio("gpu_clock_mhz") < 0.93 and change.after["gpu_throttle"] > 0:
        clause = f"the GPU's clock has fallen {change.told('gpu_clock_mhz', '{:,.0f}'.format)} MHz"
        return Cause("clocks", clause, todo)
    # Idle cores are slow cores: the clock counts only where as much was computed as before.
    busy = change.ratio("busy_s") > 0.9 and change.share("wait", "exchange") < _MOST
    if change.ratio("cpu_mhz") < 0.85 and busy:
        clause = f"the CPU's clock has fallen {change.told('cpu_mhz', '{:,.0f}'.format)} MHz"
        return Cause("clocks", clause, "Look at cooling, the power profile and other load.")
    return None


def _gpu_shared(change: Change) -> Cause | None:
    if change.rise("gpu_others") < 0.5:
        return None
    clause = "another program computes on the same GPU"
    return Cause("other program", clause, "nvidia-smi names it; use another GPU or wait for it.")


def _cpu_shared(change: Change) -> Cause | None:
    full = change.after["busy_s"] > 0.85 * change.after["cpus"]
    waits = change.rise("process_queued_s") > 0.05 or change.rise("cpu_pressure_s") > 0.1
    workers = change.after["tree_cpu_s"] - change.after["process_cpu_s"]
    lost_s = (workers + change.after["process_queued_s"]) * change.after["step_s"]
    asleep = change.share("wait") >= _MOST and lost_s < _COMPUTES * change.rise("wait")
    if change.rise("others_cpus") < 0.25 or asleep or not (full or waits):
        return None
    before, after = (max(x["others_cpus"], 0.0) for x in (change.before, change.after))
    clause = f"other programs use {after:.1f} CPUs (before: {before:.1f}), which this one needs"
    todo = "`top -o %CPU` names them; stop or move them, or ask for CPUs of your own."
    return Cause("other program", clause, todo)


def _exchange(change: Change) -> Cause | None:
    if change.share("exchange") < _MOST:
        return None
    clause = f"the wait for other ranks has grown {change.told_of_each('exchange')}"
    return Cause("rank", clause, "Look at the slowest rank: `torchdoctor report` names it.")


def _data(change: Change) -> Cause | None:
    if change.share("wait") < _MOST:
        return None
    clause = f"the wait for data has grown {change.told_of_each('wait')}"
    before, after = change.each_step("tree_cpu_s")
    pressed = change.rise("io_pressure_s") > 0.1 or change.rise("iowait_s") > 0.2
    more_work = after > 1.2 * before and after - before > 0.2 * change.rise("step_s")
    _, reads = change.each_step("read_ops")
    reads /= change.after["samples"] if change.after["samples"] > 0 else 1.0
    if more_work and not pressed:
        clause += (
            f", and a {change.unit} uses more CPU time ({seconds(before)}, now {seconds(after)})"
        )
        todo = "Look at what the dataset computes since then; more workers may hide it."
        return Cause("loader", clause, todo)
    if pressed or reads > 0.5:
        clause += ", and the loader computes no more than before: it waits for storage"
        todo = "Look at the file system (iostat -x, nfsiostat), or copy the data to a local disk."
        return Cause("storage", clause, todo)
    clause += ", and the loader computes no more than before: it waits for something else"
    return Cause("loader", clause, "Look at what the dataset waits for: network, locks, sleep.")


def _phase(change: Change) -> Cause:
    """Return the phase that grew most, where nothing that was measured explains it."""
    name = max(PHASES, key=change.rise)
    clause = f"{PHASE_NAMES[name]} has grown {change.told_of_each(name)}"
    todo = "Nothing else that torchdoctor measures has changed with it: look at your last changes."
    return Cause(name, clause, todo)


RULES: tuple[Rule, ...] = (
    _recompilation,
    _batch,
    _sequences,
    _garbage,
    _memory,
    _quota,
    _clocks,
    _gpu_shared,
    _cpu_shared,
    _exchange,
    _data,
)


def lag_clause(change: Change) -> tuple[str, str]:
    """Return why a rank is behind: data, host, clocks, batch or compute, and a clause that says so.

    `change` is from the other ranks to this one.
    """
    own = {name: change.rise(name) for name in PHASES if name not in ("evaluation", "checkpoint")}
    own["backward"] -= change.rise("exchange")  # which the wait for others is part of
    longest = max(own, key=lambda name: own[name])
    longer = f"it spends {seconds(own[longest])} more than they in {PHASE_NAMES[longest]}"
    if longest == "wait":
        return "data", f"{longer}, so its loader or storage is slow"
    if change.rise("process_queued_s") > 0.05:
        share = percent(change.after["process_queued_s"])
        return "host", f"{longer}, and waits {share} of the time for a CPU that others use"
    if change.ratio("gpu_clock_mhz") < 0.95 or change.ratio("cpu_mhz") < 0.9:
        return "clocks", f"{longer}, and its processor's clock is lower"
    if change.ratio("samples") > 1.05 or change.ratio("elements") > 1.05:
        return "batch", f"{longer}, as its batches are larger"
    return "computation", f"{longer}, so its processor is slower or has more to do"
