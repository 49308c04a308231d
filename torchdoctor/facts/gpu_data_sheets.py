"""What GPUs can do at most, by their makers' data sheets: dense arithmetic and memory bandwidth.

Makers often print figures for 2:4 sparsity, twice as high; here stand the dense ones. Only GPUs
whose sheet leaves no doubt are listed: a figure that is missing is not measured, never guessed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_NVIDIA = "https://www.nvidia.com/en-us/data-center/"
_NVIDIA_FILES = "https://images.nvidia.com/"
_AMD = "https://www.amd.com/en/products/accelerators/instinct/"


@dataclass(frozen=True, kw_only=True)
class DataSheet:
    """One GPU, as the driver names it.

    `tflops`: peak dense TFLOP/s by precision, products added up in float32: float64, float32, tf32,
    float16, bfloat16, float8; missing: the GPU has none, or it is not on the sheet. float32 is
    plain arithmetic, on AMD's the matrix cores, which torch uses for it.
    `gb_per_s`: of its memory, 10^9 bytes. `nvlink_gb_per_s`, `pcie_gb_per_s`: of what links it to
    others, both directions together as sheets print them; None: it has none, or the sheet does not
    say. `source`: where the figures are from.
    """

    name: str
    pattern: str  # of the whole name, without the maker's
    tflops: dict[str, float]
    gb_per_s: float
    source: str
    nvlink_gb_per_s: float | None = None
    pcie_gb_per_s: float | None = None

    def peak(self, precision: str) -> float | None:
        """Peak dense FLOP/s of a precision; None: the sheet does not say."""
        value = self.tflops.get(precision)
        return None if value is None else value * 1e12

    @property
    def bandwidth(self) -> float:
        """Bytes per second of its memory."""
        return self.gb_per_s * 1e9

    @property
    def links(self) -> tuple[float, float] | None:
        """Bytes per second in one direction to another GPU: by its slowest link and its fastest.

        None: the sheet names no link.
        """
        known = [one for one in (self.nvlink_gb_per_s, self.pcie_gb_per_s) if one is not None]
        return (min(known) / 2 * 1e9, max(known) / 2 * 1e9) if known else None


def _sheet(
    name: str,
    pattern: str,
    gb_per_s: float,
    source: str,
    half: float,
    nvlink: float | None = None,
    pcie: float | None = None,
    **tflops: float,
) -> DataSheet:
    """`half`: float16 and bfloat16 alike, as on every GPU since Ampere."""
    return DataSheet(
        name=name,
        pattern=pattern,
        tflops={**tflops, "float16": half, "bfloat16": half},
        gb_per_s=gb_per_s,
        source=source,
        nvlink_gb_per_s=nvlink,
        pcie_gb_per_s=pcie,
    )


_V100 = _NVIDIA_FILES + (
    "content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf"
)
_A100 = (
    "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/"
    "nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf"
)
_AMPERE = _NVIDIA_FILES + (
    "aem-dam/en-zz/Solutions/data-center/nvidia-ampere-architecture-whitepaper.pdf"
)
_T4 = (
    "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/tesla-t4/"
    "t4-tensor-core-datasheet-951643.pdf"
)
_GA102 = (
    "https://www.nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.pdf"
)
_ADA = _NVIDIA_FILES + "aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf"
_A100_TFLOPS = {"float64": 19.5, "float32": 19.5, "tf32": 156.0, "half": 312.0}
_HOPPER_SXM = {"float64": 67.0, "float32": 67.0, "tf32": 494.7, "half": 989.4, "float8": 1978.9}

SHEETS = (
    DataSheet(
        name="V100 SXM2",
        # DGXS: that of the DGX Station, four of which give 500 TFLOP/s.
        pattern=r"V100-(?:SXM2-(?:16|32)GB|DGXS-(?:16|32)GB)",
        tflops={"float64": 7.8, "float32": 15.7, "float16": 125.0},
        gb_per_s=900,
        source=_V100,
        nvlink_gb_per_s=300,
        pcie_gb_per_s=32,
    ),
    DataSheet(
        name="V100 PCIe",
        pattern=r"V100-PCIE-(?:16|32)GB",
        tflops={"float64": 7.0, "float32": 14.0, "float16": 112.0},
        gb_per_s=900,
        source=_V100,
        pcie_gb_per_s=32,
    ),
    DataSheet(
        name="V100S PCIe",
        pattern=r"V100S-PCIE-32GB",
        tflops={"float64": 8.2, "float32": 16.4, "float16": 130.0},
        gb_per_s=1134,
        source=_V100,
        pcie_gb_per_s=32,
    ),
    DataSheet(
        name="T4",
        pattern=r"T4",
        tflops={"float32": 8.1, "float16": 65.0},
        gb_per_s=300,
        source=_T4,
        pcie_gb_per_s=32,
    ),
    # PG509-200: the A100 of 40 GB on boards of the Open Compute Project.
    _sheet(
        "A100 40GB",
        r"A100-(?:(?:SXM4|PCIE)-40GB|PG509-200)",
        1555,
        _AMPERE,
        **_A100_TFLOPS,
        nvlink=600,
        pcie=64,
    ),
    _sheet("A100 80GB SXM", r"A100-SXM4-80GB", 2039, _A100, **_A100_TFLOPS, nvlink=600, pcie=64),
    _sheet("A100 80GB PCIe", r"A100 80GB PCIe", 1935, _A100, **_A100_TFLOPS, nvlink=600, pcie=64),
    _sheet(
        "A10",
        r"A10",
        600,
        _NVIDIA + "products/a10-gpu/",
        half=125.0,
        float32=31.2,
        tf32=62.5,
        pcie=64,
    ),
    _sheet(
        "H100 SXM", r"H100 80GB HBM3", 3350, _NVIDIA + "h100/", **_HOPPER_SXM, nvlink=900, pcie=128
    ),
    _sheet(
        "H100 PCIe",
        r"H100 PCIe",
        2000,
        "https://resources.nvidia.com/en-us-tensor-core",
        half=756.0,
        float32=51.0,
        tf32=378.0,
        float64=51.0,
        float8=1513.0,
        nvlink=600,
        pcie=128,
    ),
    _sheet("H200 SXM", r"H200", 4800, _NVIDIA + "h200/", **_HOPPER_SXM, nvlink=900, pcie=128),
    _sheet(
        "B200",
        r"B200",
        7700,
        _NVIDIA + "hgx/",
        half=2250.0,
        float32=75.0,
        tf32=1125.0,
        float64=37.0,
        float8=4500.0,
        nvlink=1800,
    ),
    _sheet(
        "L4",
        r"L4",
        300,
        _NVIDIA + "l4/",
        half=121.0,
        float32=30.3,
        tf32=60.0,
        float8=242.5,
        pcie=64,
    ),
    _sheet(
        "L40S",
        r"L40S",
        864,
        _NVIDIA + "l40s/",
        half=362.05,
        float32=91.6,
        tf32=183.0,
        float8=733.0,
        pcie=64,
    ),
    # Products added up in float32, as torch does: half of what float16 sums would give.
    _sheet(
        "RTX 3090",
        r"GeForce RTX 3090",
        936,
        _GA102,
        half=71.0,
        float32=35.6,
        tf32=35.6,
        nvlink=112.5,
        pcie=64,
    ),
    _sheet(
        "RTX 4090",
        r"GeForce RTX 4090",
        1008,
        _ADA,
        half=165.2,
        float32=82.6,
        tf32=82.6,
        float8=330.3,
        pcie=64,
    ),
    # The sheet is of both dies together (383 TFLOP/s, 3.2768 TB/s); each is a device of its own.
    _sheet(
        "MI250X (one die)", r"MI250X", 1638.4, _AMD + "mi200/mi250x.html", half=191.5, float32=47.9
    ),
    _sheet("MI210", r"MI210", 1638.4, _AMD + "mi200/mi210.html", half=181.0, float32=45.3),
    _sheet(
        "MI300X",
        r"MI300X(?: VF)?",
        5300,
        _AMD + "mi300/mi300x.html",
        half=1307.4,
        float32=163.4,
        float8=2614.9,
    ),
)
_MAKERS = re.compile(r"^(?:(?:NVIDIA|Tesla|AMD|Instinct)\s+)+")


def data_sheet(name: str) -> DataSheet | None:
    """The sheet of the GPU that the driver calls `name`; None: not listed.

    A slice of a GPU (MIG) has a name of its own and no sheet.
    """
    bare = _MAKERS.sub("", name.strip())
    return next((sheet for sheet in SHEETS if re.fullmatch(sheet.pattern, bare)), None)
