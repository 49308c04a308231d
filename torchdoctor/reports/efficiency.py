"""One line of what was measured by tokens, arithmetic and energy, and of what would be saved."""

from torchdoctor.reports.vocabulary import step_of
from torchdoctor.schema import Interval, Report, Saving
from torchdoctor.schema.figures import percent, quantity


def line(report: Report, with_samples: bool = False) -> str:
    """Return the figures that are known, as a sentence; empty where none is."""
    efficiency = report.efficiency
    if efficiency is None:
        return ""
    a_step = f"J a {step_of(report)}"
    parts = [
        quantity(efficiency.samples_per_s, "samples/s")
        if with_samples and efficiency.samples_per_s
        else "",
        quantity(efficiency.tokens_per_s, "tokens/s") if efficiency.tokens_per_s else "",
        f"MFU {percent(efficiency.mfu)}" if efficiency.mfu is not None else "",
        _energy(efficiency.gpu_energy_j_per_step, f"{a_step} (GPU)"),
        _energy(efficiency.cpu_energy_j_per_step, f"{a_step} (all processors)"),
        _saving(efficiency.saving) if efficiency.saving is not None else "",
    ]
    text = ", ".join(filter(None, parts))
    return f"{text}." if text else ""


def _energy(joules: float | None, unit: str) -> str:
    return quantity(joules, unit) if joules is not None else ""


def _saving(saving: Saving) -> str:
    steps = f"{saving.steps_total:,} steps take {quantity(saving.hours, 'h')}"
    steps += f" and cost {quantity(saving.cost, '')}" if saving.cost is not None else ""
    if saving.hours_saved is None:
        return steps
    saved = f"{_figures(saving.hours_saved)} h"
    saved += f" and {_figures(saving.cost_saved)}" if saving.cost_saved is not None else ""
    return f"{steps}, of which the recommendation saves {saved}"


def _figures(interval: Interval) -> str:
    low = quantity(interval.low, "")
    high = quantity(interval.high, "")
    return f"{quantity(interval.estimate, '')} ({low}-{high})"
