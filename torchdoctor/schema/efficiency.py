"""What a training gets done by time, arithmetic and energy, and what a stated length would save."""

from dataclasses import dataclass

from torchdoctor.schema.trials import Interval


@dataclass(frozen=True, kw_only=True)
class Saving:
    """What the recommended fixes save of a training of a stated length; its steps alone."""

    steps_total: int  #: Steps of the training, as stated.
    cost_per_hour: float | None = None  #: As stated; null: it was not.
    hours: float  #: Time of these steps, untouched.
    hours_saved: Interval | None = None  #: By the measured speed-up; null: none is proven.
    cost: float | None = None  #: Of `hours`, in the unit of cost_per_hour.
    cost_saved: Interval | None = None  #: Of `hours_saved`.


@dataclass(frozen=True, kw_only=True)
class Efficiency:
    """Figures of the untouched program; null: not measured, or not known."""

    samples_per_s: float | None = None  #: As in `baseline`.
    #: Of samples that are rows of tokens of one length, padding included.
    tokens_per_s: float | None = None
    #: Time of the matrix products at the GPUs' dense peak, as a share of a step's.
    mfu: float | None = None
    gpu_energy_j_per_step: float | None = None  #: Of the program's GPUs, by NVML's counters.
    #: Of the machine's processors, others' load included, by RAPL's counters.
    cpu_energy_j_per_step: float | None = None
    saving: Saving | None = None  #: null: no length was stated.
