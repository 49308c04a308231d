"""The makers' data sheets of GPUs: dense arithmetic, memory bandwidth and links at most."""

import functools
import re
from dataclasses import dataclass
from pathlib import Path

from torchdoctor.schema.record_files import parsed_toml

_MAKERS = re.compile(r"^(?:(?:NVIDIA|Tesla|AMD|Instinct)\s+)+")


@dataclass(frozen=True, kw_only=True)
class DataSheet:
    """The figures of one GPU, as gpu_data_sheets.toml explains them, and where they are from."""

    name: str
    pattern: str
    tflops: dict[str, float]
    gb_per_s: float
    source: str
    nvlink_gb_per_s: float | None = None
    pcie_gb_per_s: float | None = None

    def peak(self, precision: str) -> float | None:
        """Return the peak dense FLOP/s of a precision; None: the sheet does not say."""
        value = self.tflops.get(precision)
        return None if value is None else value * 1e12

    @property
    def bandwidth(self) -> float:
        """Bytes per second of its memory."""
        return self.gb_per_s * 1e9

    @property
    def links(self) -> tuple[float, float] | None:
        """Bytes/s in one direction to another GPU, by the slowest and the fastest link, if any."""
        rates = [link for link in (self.nvlink_gb_per_s, self.pcie_gb_per_s) if link is not None]
        return (min(rates) / 2 * 1e9, max(rates) / 2 * 1e9) if rates else None


@functools.cache
def sheets() -> tuple[DataSheet, ...]:
    """Return all sheets, in the order of the file."""
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    return tuple(DataSheet(**row) for row in parsed_toml(text)["gpu"])


def data_sheet(name: str) -> DataSheet | None:
    """Return the sheet of the GPU with this driver name; None: not listed, as a slice (MIG)."""
    bare = _MAKERS.sub("", name.strip())
    return next((sheet for sheet in sheets() if re.fullmatch(sheet.pattern, bare)), None)
