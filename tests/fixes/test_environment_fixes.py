"""Fixes that work through the launch's environment: in a real process."""

from __future__ import annotations

from pathlib import Path

import pytest
from partial_recordings import recording
from probed_examples import run_with

from torchdoctor.fixes import allocator, cpu_simd, numa_binding
from torchdoctor.schema import fact

TRAINS = """
import os, torch
os.environ.get("LD_PRELOAD")
model = torch.nn.Linear(4, 1)
model(torch.ones(2, 4)).sum().backward()
"""


@pytest.mark.slow
@pytest.mark.skipif(not allocator.installed(), reason="needs jemalloc or tcmalloc")
def test_an_installed_allocator_is_really_in_the_process(tmp_path: Path) -> None:
    (settings, *_) = allocator.settings(recording())
    ran = run_with(TRAINS, {"allocator": settings}, tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert ran.applied["allocator"]["state"] == "applied"


@pytest.mark.slow
def test_a_library_that_cannot_be_loaded_is_no_allocator(tmp_path: Path) -> None:
    ran = run_with(TRAINS, {"allocator": {"LD_PRELOAD": "/nowhere/libjemalloc.so.2"}}, tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert ran.applied["allocator"]["state"] == "refused"
    assert "libjemalloc" in ran.applied["allocator"]["why"]["values"]["library"]


def test_no_allocator_is_tried_where_one_is_preloaded() -> None:
    given = {"environment": {"LD_PRELOAD": "/x/libtcmalloc.so.4"}}
    seen = recording({"processes": [{"pid": 1, "flags": given}]})
    assert allocator.refuses(seen) == fact("allocator-preloaded")


def test_on_a_gpu_segments_grow_only_where_the_driver_is_asked_for_memory() -> None:
    trace = {"path": "t", "steps": 4, "step_s": 0.01, "has_device": True}
    calm = recording({"trace": {**trace, "allocations_per_step": 0.0}})
    assert allocator.refuses(calm) == fact("no-allocation-in-steps")
    given = {"environment": {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128"}}
    busy = recording(
        {
            "trace": {**trace, "allocations_per_step": 6.0},
            "processes": [{"pid": 1, "flags": given}],
        }
    )
    assert allocator.refuses(busy) is None
    (settings,) = allocator.settings(busy)
    assert settings == {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128,expandable_segments:True"}


def test_one_memory_node_is_nothing_to_bind_to() -> None:
    single = recording({"environment": {"numa_nodes": 1}})
    assert numa_binding.refuses(single) == fact("one-memory-node")
    assert numa_binding.refuses(recording({"environment": {"numa_nodes": 2}})) is None


def test_vector_instructions_are_only_freed_where_they_are_held_down() -> None:
    assert cpu_simd.refuses(recording()) is not None
    seen = recording(
        {
            "environment": {"cpu_features": ["avx512f"]},
            "processes": [{"pid": 1, "flags": {"environment": {"ATEN_CPU_CAPABILITY": "avx2"}}}],
        }
    )
    assert cpu_simd.refuses(seen) is None
    assert cpu_simd.FIX.environment(cpu_simd.FIX.settings(seen)[0]) == {"ATEN_CPU_CAPABILITY": None}
