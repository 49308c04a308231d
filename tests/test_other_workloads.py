"""Two traces of different programs have no ratio worth telling; two of one program have."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import recorded_traces
from compared_pairs import diagnosed, trace_of

from torchdoctor.compare import compare
from torchdoctor.compare.workloads import different
from torchdoctor.words import Report, TraceStatistics

ROOT = Path(__file__).parent.parent
RESNET = {"aten::cudnn_convolution": 53, "aten::addmm": 1, "aten::mm": 2}
RESNET_SIZES = ["[32, 256, 14, 14], [1024, 256, 1, 1]", "[32, 64, 56, 56], [64, 64, 3, 3]"]
BERT = {"aten::addmm": 74, "aten::bmm": 24, "aten::mm": 146}
BERT_SIZES = ["[768], [4096, 768], [768, 768]", "[3072], [4096, 768], [768, 3072]"]


def of(folder: Path, calls: dict[str, float], sizes: list[str]) -> Report:
    """A diagnosed trace whose steps run these operators, and products of these sizes."""
    report = diagnosed(folder, "trace.json", trace_of())
    assert report.trace is not None
    products = [
        {"operator": "o", "sizes": one, "precision": None, "calls_per_step": 1.0}
        | {"flops": 1e9, "device_s": 1e-3}
        for one in sizes
    ]
    over = {
        "operators": [
            {"name": name, "calls_per_step": float(number), "self_s": 1e-4}
            for name, number in calls.items()
        ],
        "matrix_work": {"flops": 1e9, "device_s": 1e-3, "known_share": 1.0, "products": products},
    }
    whole = {**msgspec.to_builtins(report.trace), **over}
    return replace(report, trace=msgspec.convert(whole, TraceStatistics))


DIFFERENT = {
    "other layers": (RESNET, RESNET_SIZES, BERT, BERT_SIZES),
    "a model of the same kind": (
        {"aten::addmm": 26},
        ["[512], [141, 512], [512, 512]", "[30522], [141, 512], [512, 30522]"],
        {"aten::addmm": 1125, "aten::bmm": 380},
        ["[3072], [3600, 768], [768, 3072]"],
    ),
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_different_programs_are_said_to_be(case: str, tmp_path: Path) -> None:
    """ "B is 274x slower per step", of a small BERT against a vision model with its loader."""
    calls, sizes, others, other_sizes = DIFFERENT[case]
    a, b = of(tmp_path, calls, sizes), of(tmp_path, others, other_sizes)
    for found in (compare(a, b), compare(b, a)):
        assert found.doubts[0].startswith("The two do not look like the same workload: ")
        assert found.sentence.endswith("do not look like the same workload, see the doubts.")


SAME = {
    "mixed precision": (RESNET, RESNET_SIZES, {**RESNET, "aten::_to_copy": 320}, RESNET_SIZES),
    "torch.compile": (
        BERT | {"aten::layer_norm": 25, "aten::gelu": 12, "aten::add_": 900},
        BERT_SIZES,
        {"aten::addmm": 30, "aten::mm": 190, "triton_per_fused_native_layer_norm": 25},
        ["[4096, 768], [768, 768]", "[4096, 3072], [3072, 768]"],
    ),
    "graphs, which hold all operators": (BERT, BERT_SIZES, {"CUDAGraph.replay": 1}, []),
    "another batch": (BERT, BERT_SIZES, BERT, [s.replace("4096", "8192") for s in BERT_SIZES]),
    "accumulated gradients": (
        BERT,
        BERT_SIZES,
        {name: 8 * number for name, number in BERT.items()},
        BERT_SIZES,
    ),
    "a loop over samples that became one product": (
        {"aten::mm": 2000},
        ["[1, 64], [64, 64]"],
        {"aten::bmm": 12},
        ["[2000, 1, 64], [2000, 64, 64]"],
    ),
    "wider layers": (BERT, BERT_SIZES, BERT, [s.replace("768", "1024") for s in BERT_SIZES]),
}


@pytest.mark.parametrize("case", SAME)
def test_a_program_before_and_after_a_change_is_compared(case: str, tmp_path: Path) -> None:
    calls, sizes, others, other_sizes = SAME[case]
    a, b = of(tmp_path, calls, sizes), of(tmp_path, others, other_sizes)
    assert different(a, b) is None
    assert "workload" not in compare(a, b).sentence


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("h100_bert_launch_bound", "h100_owlv2_data_loader", False),
        ("v100_resnet50_workers0", "v100_resnet50_workers4", True),
        ("v100_resnet50_workers0", "v100_resnet50_list_root", True),
    ],
)
def test_recorded_programs(first: str, second: str, same: bool) -> None:
    a, b = recorded_traces.report(first), recorded_traces.report(second)
    assert (different(a, b) is None) == same
