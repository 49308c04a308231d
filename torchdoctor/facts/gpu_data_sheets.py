"""The makers' data sheets of GPUs: dense arithmetic, memory bandwidth and links at most.

Makers often print figures for 2:4 sparsity, twice as high; these are the dense ones. Only GPUs
whose sheet leaves no doubt are listed: a figure that is missing is not known, never guessed.
"""

import re
from dataclasses import dataclass

_PRECISIONS = ("float64", "float32", "tf32", "float16", "bfloat16", "float8")
_SOURCES = """
V100 https://images.nvidia.com/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf
T4 https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/tesla-t4/t4-tensor-core-datasheet-951643.pdf
Ampere https://images.nvidia.com/aem-dam/en-zz/Solutions/data-center/nvidia-ampere-architecture-whitepaper.pdf
A100 https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf
A10 https://www.nvidia.com/en-us/data-center/products/a10-gpu/
H100 https://www.nvidia.com/en-us/data-center/h100/
H100-PCIe https://resources.nvidia.com/en-us-tensor-core
H200 https://www.nvidia.com/en-us/data-center/h200/
B200 https://www.nvidia.com/en-us/data-center/hgx/
L4 https://www.nvidia.com/en-us/data-center/l4/
L40S https://www.nvidia.com/en-us/data-center/l40s/
GA102 https://www.nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.pdf
Ada https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf
MI250X https://www.amd.com/en/products/accelerators/instinct/mi200/mi250x.html
MI210 https://www.amd.com/en/products/accelerators/instinct/mi200/mi210.html
MI300X https://www.amd.com/en/products/accelerators/instinct/mi300/mi300x.html
"""
# Name | pattern (driver) | memory GB/s | TFLOP/s by precision | NVLink and PCIe GB/s | source
# V100 DGXS: the sheet of the DGX Station, four of which give 500 TFLOP/s. PG509-200: the A100 of
# 40 GB on boards of the Open Compute Project. GeForce: 16-bit products added up in float32, as
# torch does, which is half of what float16 sums would give. MI250X: the sheet is of both dies
# together (383 TFLOP/s, 3.2768 TB/s); each is a device of its own.
_TABLE = r"""
V100 SXM2 | V100-(?:SXM2-(?:16|32)GB|DGXS-(?:16|32)GB) | 900 | 7.8 15.7 - 125 - - | 300 32 | V100
V100 PCIe | V100-PCIE-(?:16|32)GB | 900 | 7 14 - 112 - - | - 32 | V100
V100S PCIe | V100S-PCIE-32GB | 1134 | 8.2 16.4 - 130 - - | - 32 | V100
T4 | T4 | 300 | - 8.1 - 65 - - | - 32 | T4
A100 40GB | A100-(?:(?:SXM4|PCIE)-40GB|PG509-200) | 1555 | 19.5 19.5 156 312 312 - | 600 64 | Ampere
A100 80GB SXM | A100-SXM4-80GB | 2039 | 19.5 19.5 156 312 312 - | 600 64 | A100
A100 80GB PCIe | A100 80GB PCIe | 1935 | 19.5 19.5 156 312 312 - | 600 64 | A100
A10 | A10 | 600 | - 31.2 62.5 125 125 - | - 64 | A10
H100 SXM | H100 80GB HBM3 | 3350 | 67 67 494.7 989.4 989.4 1978.9 | 900 128 | H100
H100 PCIe | H100 PCIe | 2000 | 51 51 378 756 756 1513 | 600 128 | H100-PCIe
H200 SXM | H200 | 4800 | 67 67 494.7 989.4 989.4 1978.9 | 900 128 | H200
B200 | B200 | 7700 | 37 75 1125 2250 2250 4500 | 1800 - | B200
L4 | L4 | 300 | - 30.3 60 121 121 242.5 | - 64 | L4
L40S | L40S | 864 | - 91.6 183 362.05 362.05 733 | - 64 | L40S
RTX 3090 | GeForce RTX 3090 | 936 | - 35.6 35.6 71 71 - | 112.5 64 | GA102
RTX 4090 | GeForce RTX 4090 | 1008 | - 82.6 82.6 165.2 165.2 330.3 | - 64 | Ada
MI250X (one die) | MI250X | 1638.4 | - 47.9 - 191.5 191.5 - | - - | MI250X
MI210 | MI210 | 1638.4 | - 45.3 - 181 181 - | - - | MI210
MI300X | MI300X(?: VF)? | 5300 | - 163.4 - 1307.4 1307.4 2614.9 | - - | MI300X
"""
_MAKERS = re.compile(r"^(?:(?:NVIDIA|Tesla|AMD|Instinct)\s+)+")


@dataclass(frozen=True, kw_only=True)
class DataSheet:
    """The figures of one GPU, with the address of its sheet."""

    name: str
    pattern: str  # of the driver's whole name, without the maker's
    # Peak dense TFLOP/s by precision, products added up in float32; a missing one is not on the
    # sheet. float32 is plain arithmetic; on AMD's the matrix cores, which torch uses for it.
    tflops: dict[str, float]
    gb_per_s: float  # of its memory, 10^9 bytes
    source: str
    # Of what links it to other GPUs, both directions together, as sheets print them; None: it has
    # none, or the sheet does not say.
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
        known = [link for link in (self.nvlink_gb_per_s, self.pcie_gb_per_s) if link is not None]
        return (min(known) / 2 * 1e9, max(known) / 2 * 1e9) if known else None


def _sheet(row: str) -> DataSheet:
    name, pattern, memory, arithmetic, links, source = row.split(" | ")
    columns = f"{arithmetic} {links}".split()
    *tflops, nvlink, pcie = (None if x == "-" else float(x) for x in columns)
    known = zip(_PRECISIONS, tflops, strict=True)
    return DataSheet(
        name=name,
        pattern=pattern,
        tflops={precision: figure for precision, figure in known if figure is not None},
        gb_per_s=float(memory),
        source=_ADDRESSES[source],
        nvlink_gb_per_s=nvlink,
        pcie_gb_per_s=pcie,
    )


_ADDRESSES = dict(line.split() for line in _SOURCES.strip().splitlines())
SHEETS = tuple(map(_sheet, _TABLE.strip().splitlines()))


def data_sheet(name: str) -> DataSheet | None:
    """Return the sheet of the GPU with this driver name; None: not listed, as a slice (MIG)."""
    bare = _MAKERS.sub("", name.strip())
    return next((sheet for sheet in SHEETS if re.fullmatch(sheet.pattern, bare)), None)
