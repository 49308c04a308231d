"""GPU names as drivers write them -> the right data sheet, or none."""

from __future__ import annotations

import pytest

from torchdoctor.queries.gpu_data_sheets import data_sheet, sheets


@pytest.mark.parametrize(
    ("driver", "sheet"),
    [
        ("Tesla V100-SXM2-16GB", "V100 SXM2"),
        ("Tesla V100-DGXS-32GB", "V100 SXM2"),
        ("Tesla V100-PCIE-32GB", "V100 PCIe"),
        ("Tesla V100S-PCIE-32GB", "V100S PCIe"),
        ("Tesla T4", "T4"),
        ("A100-SXM4-40GB", "A100 40GB"),
        ("NVIDIA A100-PG509-200", "A100 40GB"),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB SXM"),
        ("NVIDIA A100 80GB PCIe", "A100 80GB PCIe"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H200", "H200 SXM"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA GeForce RTX 3090", "RTX 3090"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("AMD Instinct MI250X", "MI250X (one die)"),
        ("AMD Instinct MI300X", "MI300X"),
    ],
)
def test_a_gpu_has_its_own_sheet(driver: str, sheet: str) -> None:
    found = data_sheet(driver)
    assert found is not None
    assert found.name == sheet


@pytest.mark.parametrize(
    "driver",
    [
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 3090 Ti",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA A10G",
        "NVIDIA H20",
        "NVIDIA H200 NVL",
        "NVIDIA GB200",
        "AMD Instinct MI250X/MI250",
        "GPU",
        "",
    ],
)
def test_a_similar_name_does_not_get_the_figures_of_another(driver: str) -> None:
    assert data_sheet(driver) is None


@pytest.mark.parametrize("sheet", sheets(), ids=lambda sheet: sheet.name)
def test_figures_are_dense_and_have_a_source(sheet) -> None:
    """A figure for sparsity slips in as twice or four times the next precision's."""
    assert sheet.source.startswith("https://")
    assert 200 < sheet.gb_per_s < 10_000
    half, single = sheet.tflops["float16"], sheet.tflops["float32"]
    if "tf32" in sheet.tflops:
        assert half / sheet.tflops["tf32"] == pytest.approx(2.0, rel=0.02)
    if "float8" in sheet.tflops:
        assert sheet.tflops["float8"] / half == pytest.approx(2.0, rel=0.03)
    assert 1.9 < half / single < 32
    assert sheet.tflops.get("bfloat16", half) == half
    assert sheet.peak("float16") == half * 1e12
    assert sheet.peak("int4") is None
