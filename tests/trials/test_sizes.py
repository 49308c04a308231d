"""How large a batch may be: simulated launches, and a program of limited memory."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import pytest
from light_torch import LIGHT
from partial_recordings import recording
from simulated_program import Simulated, try_all
from told_facts import quoted, why

from torchdoctor.advice import catalogue
from torchdoctor.bench.measurement import Pace, ProgramLaunches
from torchdoctor.bench.record import Recorder
from torchdoctor.launch.launch_spec import FixFile, LaunchSpec
from torchdoctor.launch.sandbox import Sandbox
from torchdoctor.launch.workload import workload_of
from torchdoctor.observe.window import Window
from torchdoctor.schema import AppliedFix, Candidate, FixSet, LaunchTiming, message
from torchdoctor.trials.arms import FixFacts

FIX = catalogue.fixes()["larger-batch"]
TODAY = 32


def seen(samples: int | None = 50_000, **more: Any) -> Any:
    loader = {"ident": 0, "batches": 60, "batch_size": TODAY, "dataset_length": samples}
    return recording({"processes": [{"pid": 1, "loaders": [loader]}], **more})


class Limited(Simulated):
    """A step costs 80 ms and 0.2 ms a sample; a batch takes 1 MB a sample, of `room` bytes."""

    room = 600e6
    no_room = "out-of-memory"

    def __call__(self, fixes: Any, *, seed_offset: int = 0) -> LaunchTiming:
        size = fixes[0][1]["batch_size"] if fixes else TODAY
        self.launched.append((str(size), seed_offset))
        self.now += self.launch_s
        applied = [AppliedFix(fix=fix, state="applied") for fix, _ in fixes]
        if size * 1e6 > self.room:
            return LaunchTiming(ended=self.no_room, why=message("No room."), fixes=applied)
        step_s = (0.080 + 0.0002 * size) * self.random.lognormvariate(0.0, 0.002)
        return LaunchTiming(
            ended="measured",
            step_s=[step_s] * 20,
            samples=20.0 * size,
            window_s=20 * step_s,
            losses=[2.0] * 40,
            peak_memory_bytes=int(5e7 + size * 1e6),
            fixes=applied,
        )


def searched(program: Limited, what: Any, budget_s: float = 1000.0) -> Any:
    (first,) = FIX.settings(what)
    return try_all(
        program,
        [],
        budget_s,
        tried=[Candidate(fixes=FixSet.of("larger-batch", first))],
        facts={"larger-batch": FixFacts(keeps_results="changes training")},
        allow_training_changes=True,
        growing={"larger-batch": functools.partial(FIX.next_settings, recording=what)},
    )


def sizes_of(program: Limited) -> list[int]:
    """Each size in the order that it was launched first."""
    return list(dict.fromkeys(int(name) for name, _ in program.launched))


def test_it_doubles_to_the_memorys_end_and_goes_on_below() -> None:
    program = Limited()
    results = searched(program, seen())
    # 600 fit; between 512 and 1024 halves are tried, in multiples of 8, until an eighth is left.
    assert sizes_of(program) == [32, 64, 128, 256, 512, 1024, 768, 640, 576]
    assert all(size % 8 == 0 for size in sizes_of(program))
    rows = {one.fixes["larger-batch"]["batch_size"]: one for one in results.trials}
    assert {size for size, one in rows.items() if one.verdict == "failed"} == {640, 768, 1024}
    assert quoted(rows[768]) == ["No room."]
    assert [one.settings for one in results.recommendation.fixes] == [{"batch_size": 576}]
    # Per sample: 2.7 ms at 32, 0.339 ms at 576.
    assert results.recommendation.speedup.estimate == pytest.approx(2.7 / 0.3389, rel=0.02)
    assert rows[64].pairs == 1 and "one-pair" in why(rows[64])


def test_a_size_that_fails_of_something_else_ends_the_search() -> None:
    class Fixed(Limited):
        no_room = "failed"

    program = Fixed()
    searched(program, seen())
    assert sizes_of(program) == [32, 64, 128, 256, 512, 1024]


def test_no_larger_than_what_is_faster_or_there_or_useful() -> None:
    program = Limited()
    searched(program, seen(samples=200))
    assert sizes_of(program) == [32, 64, 128]

    class Computing(Limited):
        def __call__(self, fixes: Any, *, seed_offset: int = 0) -> LaunchTiming:
            timing = super().__call__(fixes, seed_offset=seed_offset)
            each_s = max(0.001, 0.08 / ((timing.samples or 20.0) / 20))
            steps = [each_s * (timing.samples or 20.0) / 20] * 20
            return dataclasses.replace(timing, step_s=steps, window_s=sum(steps))

    computing = Computing()
    searched(computing, seen())
    # From 80 samples on a sample takes its millisecond: 256 gained nothing on 128.
    assert sizes_of(computing) == [32, 64, 128, 256]


def test_without_a_gpu_no_size_is_launched_that_would_take_the_machines_memory() -> None:
    program = Limited()
    small = seen(environment={"memory_bytes": 2**40, "container": {"memory_bytes": 250_000_000}})
    searched(program, small)
    assert sizes_of(program) == [32, 64, 128], "256 would need 306 MB of 250"


def test_it_takes_no_more_than_its_part_of_the_budget() -> None:
    program = Limited()
    results = searched(program, seen(), budget_s=60.0)
    assert program.now <= 60.0
    assert len(sizes_of(program)) <= 6
    assert [one.fix for one in results.recommendation.fixes] == ["larger-batch"]


# The program limits its own address space, as a shell's `ulimit -v` or a batch system would.
SCRIPT = f"""
import resource, time
import torch
{LIGHT}torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Linear(64, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(40000, 64))
model(torch.randn(2, 64)).sum().backward()
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + 500 * 2**20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
for epoch in range(100):
    for (x,) in torch.utils.data.DataLoader(data, batch_size=8):
        activations = torch.empty(len(x), 2**20)  # 4 MiB a sample, never touched
        time.sleep(0.02)
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.slow
def test_a_size_that_does_not_fit_into_memory_ends_its_launch_and_says_so(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    workload = workload_of([str(script)], cwd=str(tmp_path))
    sandbox = Sandbox.choose("auto", tmp_path, workload)
    recorder = Recorder(workload, tmp_path / "run", sandbox, 0, None, 300.0, forks=True)
    window = Window(warmup_steps=2, measure_steps=5, max_window_s=10.0)
    try:
        pace = Pace.of(recorder.observe(None, 1.0, 6.0))
        launches = ProgramLaunches(recorder=recorder, pace=pace, window=window)
        ended = {}
        for size in (16, 256):
            larger = FixFile("larger-batch", Path(FIX.file), {"batch_size": size})
            arm = LaunchSpec(name="size", fixes=(larger,), forked=True)
            ended[size] = launches.alone(arm, 300.0).ended
    finally:
        recorder.close()
        sandbox.close()
    assert ended == {16: "measured", 256: "out-of-memory"}
