from __future__ import annotations

import json

import numpy as np
import pytest
from event_sequences import Script

from torchdoctor.bench.launch_timing import launch_timing, read_launch
from torchdoctor.launch.launch import LaunchResult
from torchdoctor.launch.launch_spec import LaunchSpec
from torchdoctor.probe import step_log
from torchdoctor.schema import Boundary, Fingerprint

LOADER = Boundary(kind="loader", ident=0)


def timed(batches=12, warmup=4, measure=6, ms=9.0, samples=8, whole=True) -> Script:
    """What a timing launch logs: boundaries before fetches, the window between two of them."""
    script = Script()
    script.start_loader()
    for number in range(batches):
        if number == warmup:
            script.log(step_log.WINDOW_BEGIN)
        script.log(step_log.BOUNDARY, value=number)
        if number == warmup + measure and whole:
            script.log(step_log.WINDOW_END, value=measure)
            break
        script.fetch(ms=ms - 7.0, samples=samples)
        script.forward()
        script.backward()
        script.optimizer()
        script.pause(1.0)
    return script


def leave(channel, pid, script, losses=(), **facts):
    (channel / f"events-{pid}.bin").write_bytes(np.array(script.rows, "<i8").tobytes())
    (channel / f"losses-{pid}.bin").write_bytes(np.array(losses, "<f8").tobytes())
    facts = {"pid": pid, "first_step_s": 2.5, **facts}
    (channel / f"process-{pid}.json").write_text(json.dumps(facts))


def test_a_whole_window(tmp_path):
    fix = {"fix": "pin-memory", "state": "applied"}
    leave(
        tmp_path,
        5,
        timed(),
        losses=[3.0, float("nan"), float("inf")],
        fixes=[fix],
        loaders=[{"ident": 0, "input_hashes": ["a", "c"], "label_hashes": ["b", None]}],
        peak_memory_bytes=1000,
    )
    timing = launch_timing(tmp_path, LOADER)
    assert timing.ended == "measured"
    assert timing.step_s == pytest.approx([0.009] * 6)
    assert timing.window_s == pytest.approx(0.054)
    assert timing.samples == pytest.approx(48)
    assert timing.losses[0] == 3.0
    assert np.isnan(timing.losses[1])
    assert timing.losses[2] is None
    labelled = Fingerprint(input="a", label="b")
    assert timing.fingerprints == [labelled, Fingerprint(input="c")]
    assert (timing.peak_memory_bytes, timing.gpu_memory) == (1000, False)
    assert [one.fix for one in timing.fixes] == ["pin-memory"]
    assert timing.iterations == 10
    # Start-up, and four iterations of warm-up.
    assert timing.setup_s == pytest.approx(2.5 + 4 * 0.009, abs=1e-6)


def test_gpu_memory_where_there_is_a_gpu(tmp_path):
    leave(tmp_path, 5, timed(), peak_memory_bytes=1000, peak_gpu_memory_bytes=77)
    timing = launch_timing(tmp_path, LOADER)
    assert (timing.peak_memory_bytes, timing.gpu_memory) == (77, True)


@pytest.mark.parametrize(("sampled", "told"), [(None, 1000), (600, 1000), (1400, 1400)])
def test_memory_that_no_sample_saw_counts(tmp_path, sampled, told):
    """Data made in an instant was sampled in one launch only: a fix was said to save its size."""
    leave(tmp_path, 5, timed(), peak_memory_bytes=1000)
    result = LaunchResult(
        ended="stopped", exit_code=None, wall_s=1.0, channel=tmp_path, output_tail=""
    )
    spec = LaunchSpec(name="baseline", boundary=LOADER)
    assert read_launch(result, spec, sampled).peak_memory_bytes == told


def test_a_program_that_ended_within_its_window(tmp_path):
    leave(tmp_path, 5, timed(batches=9, whole=False))
    timing = launch_timing(tmp_path, LOADER)
    assert timing.ended == "program-ended"
    assert len(timing.step_s) == 4  # boundaries 4 to 8


def test_a_program_that_never_got_there(tmp_path):
    leave(tmp_path, 5, timed(batches=3), fixes=[{"fix": "tf32", "state": "refused"}])
    timing = launch_timing(tmp_path, LOADER)
    assert timing.ended == "failed"
    assert timing.step_s == []
    assert [one.state for one in timing.fixes] == ["refused"]
    assert launch_timing(tmp_path / "empty", LOADER).ended == "failed"


def test_samples_of_several_trainers_add_up_as_rates(tmp_path):
    leave(tmp_path, 9, timed(ms=9.0), rank=0)
    leave(tmp_path, 4, timed(ms=18.0), rank=1)
    timing = launch_timing(tmp_path, LOADER)
    assert timing.step_s == pytest.approx([0.009] * 6)  # rank 0's
    assert timing.samples == pytest.approx(48 + 24)


def test_batches_of_unknown_size(tmp_path):
    leave(tmp_path, 5, timed(samples=-2))
    assert launch_timing(tmp_path, LOADER).samples is None
