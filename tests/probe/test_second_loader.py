"""Loader fixes within one launch: a second loader's batches, and the program's own left alone."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
from probed import Probed, run_plain, run_probed

from torchdoctor.advice import catalogue
from torchdoctor.probe import step_log

pytestmark = pytest.mark.slow

# Every sample takes 3 ms of sleep. A row is written for each iteration.
SCRIPT = """
import json, multiprocessing, os, random, sys, time, torch
torch.manual_seed(0)
random.seed(0)
class Slow(torch.utils.data.Dataset):
    def __len__(self): return 80
    def __getitem__(self, index):
        time.sleep(0.003)
        GET
        return torch.full((3,), float(index)), os.getpid()
KIND
net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Dropout(0.5), torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=1e-5, momentum=0.9)
data = Slow()
loader = torch.utils.data.DataLoader(data, batch_size=4, LOADER)
rows = open("rows.jsonl", "w")
for epoch in range(EPOCHS):
    for x, pid in loader:
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        BODY
        row = [[int(i) for i in x[:, 0]], pid.tolist(), loss.item(), random.random()]
        print(json.dumps(row), file=rows, flush=True)
print("left:", len(multiprocessing.active_children()), "own:", os.getpid())
"""


def script(loader: str = "shuffle=True", epochs: int = 40, **parts: str) -> str:
    text = SCRIPT.replace("LOADER", loader).replace("EPOCHS", str(epochs))
    for name in ("GET", "KIND", "BODY"):
        text = text.replace(name, parts.get(name, "" if name == "KIND" else "pass"))
    return text


def arm(fix: str, **settings: Any) -> list[dict[str, Any]]:
    file = catalogue.fixes()[fix].file
    return [{"id": fix, "file": file, "settings": settings}]


def run(folder: Path, text: str, *arms: list[dict[str, Any]], **wanted: Any) -> Probed:
    """3 iterations to warm up, then blocks of 6 after 2 discarded, or as many as are held ready."""
    (folder / "train.py").write_text(text)
    switch = {"arms": list(arms), "rounds": 2, "block_steps": 6, "discard_steps": 2, "seed": 3}
    after = wanted.pop("after", "freeze")
    return run_probed(
        ["train.py"],
        folder,
        folder,
        forked=True,
        purpose="time",
        boundary={"kind": "loader", "ident": 0, "every": 1},
        warmup_steps=3,
        switch={**switch, **wanted},
        after=after,
        timeout=600,
    )


def rows_of(folder: Path) -> list[list[Any]]:
    return [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]


def on_in_iterations(ran: Probed) -> list[int]:
    """Which arm was on in each iteration."""
    now, found = 0, []
    for code, ident, _, _ in ran.events[ran.main_pid]:
        if code == step_log.SWITCH:
            now = int(ident)
        elif code == step_log.FORWARD_BEGIN:
            found.append(now)
    return found


def blocks(ran: Probed) -> list[tuple[int, float]]:
    """(arm, mean step in seconds) of each block."""
    found, times, inside = [], [], None
    for code, ident, t_ns, _ in ran.events[ran.main_pid]:
        if code == step_log.BLOCK_BEGIN:
            inside, times = int(ident), []
        elif code == step_log.BLOCK_END and inside is not None:
            found.append((inside, (times[-1] - times[0]) / 1e9 / (len(times) - 1)))
            inside = None
        elif code == step_log.BOUNDARY:
            times.append(int(t_ns))
    return found


def untouched(folder: Path, text: str) -> list[list[Any]]:
    """What the program writes when nobody looks on."""
    other = folder / "plain"
    other.mkdir()
    (other / "train.py").write_text(text)
    ran = run_plain(["train.py"], other, forked=True)
    assert ran.returncode == 0, ran.stderr
    return rows_of(other)


def without_pids(rows: list[list[Any]]) -> list[tuple[Any, ...]]:
    return [(samples, loss, luck) for samples, _, loss, luck in rows]


def test_workers_are_seen_as_faster_and_the_program_loses_no_batch(tmp_path: Path) -> None:
    """Its own batches, losses and random numbers are those of a run that nobody looks at."""
    ran = run(tmp_path, script(), arm("loader-workers", num_workers=2), arm("pin-memory"))
    states = {fix["fix"]: fix["state"] for fix in ran.main["fixes"]}
    assert states["loader-workers"] == "applied" and ran.said() == [], ran.main["fixes"]
    on, rows = on_in_iterations(ran), rows_of(tmp_path)
    ours = [row for one, row in zip(on, rows, strict=False) if one == 0]
    theirs = [row for one, row in zip(on, rows, strict=False) if one == 1]
    plain = untouched(tmp_path, script(epochs=4))
    assert len(ours) > 20
    assert without_pids(ours) == without_pids(plain)[: len(ours)]
    own = {pid for row in ours for pid in row[1]}
    elsewhere = {pid for row in theirs for pid in row[1]}
    assert len(own) == 1 and len(elsewhere) == 2 and not own & elsewhere
    assert {len(row[0]) for row in theirs} == {4}
    times = {n: statistics.median(t for one, t in blocks(ran) if one == n) for n in (0, 1)}
    assert times[0] >= 4 * 0.003 and times[1] < times[0]


def test_the_stock_is_used_up_before_a_block_and_full_before_the_next(tmp_path: Path) -> None:
    """Batches that workers made while others were on would be measured as if made in no time."""
    ran = run(tmp_path, script(), arm("loader-workers", num_workers=4), rounds=3)
    now, count, waited = 0, 0, []
    for code, ident, _, _ in ran.events[ran.main_pid]:
        if code == step_log.SWITCH:
            now, count = int(ident), 0
        elif code == step_log.FORWARD_BEGIN:
            count += 1
        elif code == step_log.BLOCK_BEGIN and int(ident) == now == 1 and count:
            waited.append(count)
            count = -1000  # the next block of this arm follows without a switch
    first = [n for n in waited if n > 0]
    assert first and min(first) >= 4 * 2


def test_workers_end_with_the_blocks_and_the_program_goes_on(tmp_path: Path) -> None:
    ran = run(
        tmp_path,
        script("num_workers=1, prefetch_factor=2", epochs=5),
        arm("loader-workers", num_workers=2),
        arm("loader-workers", num_workers=0),
        arm("prefetch-factor", prefetch_factor=4),
        after="continue",
        rounds=1,
    )
    assert [fix["state"] for fix in ran.main["fixes"]] == ["applied"] * 3, ran.main["fixes"]
    assert ran.returncode == 0 and ran.stderr == ""
    assert "left: 0" in ran.stdout
    assert [arm for arm, _ in blocks(ran)].count(3) == 1
    # Without shuffling: each pass of its own is whole and in order.
    on, rows = on_in_iterations(ran), rows_of(tmp_path)
    on += [0] * (len(rows) - len(on))
    own = [i for one, row in zip(on, rows, strict=True) if one == 0 for i in row[0]]
    assert len(own) > 2 * 80 and own == (list(range(80)) * 5)[: len(own)]


def test_a_program_that_ends_within_its_blocks_ends_as_ever(tmp_path: Path) -> None:
    ran = run(tmp_path, script(epochs=1), arm("loader-workers", num_workers=2), rounds=50)
    assert ran.returncode == 0 and ran.stderr == ""
    assert "left: 2" in ran.stdout, "they are alive as long as the program may come back to them"
    assert blocks(ran), "whole blocks count"
    for row in rows_of(tmp_path):
        for pid in row[1]:
            assert not Path(f"/proc/{pid}").exists()


def test_a_generator_of_the_programs_own_is_not_drawn_from(tmp_path: Path) -> None:
    loader = "shuffle=True, generator=torch.Generator().manual_seed(7)"
    ran = run(tmp_path, script(loader), arm("loader-workers", num_workers=1), rounds=3)
    assert ran.main["fixes"][0]["state"] == "applied"
    on, rows = on_in_iterations(ran), rows_of(tmp_path)
    ours = [row for one, row in zip(on, rows, strict=False) if one == 0]
    assert without_pids(ours) == without_pids(untouched(tmp_path, script(loader, 4)))[: len(ours)]


SHARDED = """
class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for i in range(first, 80, step):
            time.sleep(0.003)
            yield torch.full((3,), float(i)), os.getpid()
Slow = Stream
"""


def test_a_stream_that_shards_itself_goes_on_where_it_was(tmp_path: Path) -> None:
    fix = arm("loader-workers", num_workers=2, loader=0)
    ran = run(tmp_path, script("", epochs=30, KIND=SHARDED), fix)
    assert ran.main["fixes"][0]["state"] == "applied" and ran.said() == [], ran.main["fixes"]
    on, rows = on_in_iterations(ran), rows_of(tmp_path)
    own = [row[0][0] for one, row in zip(on, rows, strict=False) if one == 0]
    assert len(own) > 20 and own == [4 * n % 80 for n in range(len(own))]
    assert 1 in [one for one, _ in blocks(ran)]


FAILS = "if os.getppid() == PARENT and index % 3 == 0: raise ValueError('only in workers')"


def test_a_data_set_that_fails_in_workers_costs_the_arm_alone(tmp_path: Path) -> None:
    text = script(
        epochs=6, GET=FAILS.replace("PARENT", "PARENT_PID"), KIND="PARENT_PID = os.getpid()"
    )
    workers, threads = arm("loader-workers", num_workers=2), arm("cpu-threads", num_threads=1)
    ran = run(tmp_path, text, workers, threads, after="continue")
    first, second = ran.main["fixes"]
    assert first["state"] == "failed" and "only in workers" in first["why"]["values"]["message"]
    assert second["state"] == "applied" and ran.returncode == 0, ran.stderr
    assert "left: 0" in ran.stdout and [one for one, _ in blocks(ran)].count(2) >= 2
    on, rows = on_in_iterations(ran), rows_of(tmp_path)
    assert len(rows) == 6 * 20, "no batch of its own was lost"
    assert on.count(1) < 6


COPIES = """
import torch
from torch.utils.data import DataLoader, Dataset, Sampler
from torchdoctor.probe.fixkit import second_loader
class Data(Dataset):
    def __init__(self): self.rows = [[i] for i in range(20)]
    def __len__(self): return 20
    def __getitem__(self, index): return torch.tensor(self.rows[index])
    def __deepcopy__(self, known): raise MemoryError("the data set must not be copied")
class Own(DataLoader):
    def __init__(self, data, **more):
        super().__init__(data, **more)
        self.kept = "an attribute of a subclass"
class Groups(Sampler):  # knows the data, draws from the loader's generator, has no length
    def __init__(self, data, generator):
        self.data, self.rows, self.generator, self.passes = data, data.rows, generator, 0
    def __iter__(self):
        self.passes += 1
        yield from torch.randperm(20, generator=self.generator).view(5, 4).tolist()
data, generator = Data(), torch.Generator().manual_seed(3)
sampler = Groups(data, generator)
loader = Own(data, batch_sampler=sampler, generator=generator, num_workers=1)
def seconds(later):
    arguments = second_loader.arguments_of(loader, torch)
    arguments["num_workers"] = 0
    arguments["prefetch_factor"] = None
    return second_loader.second(loader, arguments, later, torch, DataLoader.__init__)
before = generator.get_state()
found = seconds(2)
batches = [[len(list(found)), len(list(found))], type(found).__name__, found.kept]
copied = found.batch_sampler._sampler
assert copied is not sampler and copied.data is data and copied.rows is data.rows
assert copied.generator is found.generator is not generator, "one clone for both"
assert bool((generator.get_state() == before).all()) and sampler.passes == 0
print(batches, loader.num_workers, found.num_workers)
"""


def test_a_second_loader_shares_the_data_and_draws_from_clones(tmp_path: Path) -> None:
    (tmp_path / "copies.py").write_text(COPIES)
    root = str(Path(catalogue.__file__).parent.parent)
    ran = run_plain(["copies.py"], tmp_path, forked=True, PYTHONPATH=root)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "[[3, 5], 'Own', 'an attribute of a subclass'] 1 0\n"


REFUSED = {
    "a stream that every worker would repeat": (
        {
            "KIND": "class Slow(torch.utils.data.IterableDataset):\n"
            "    def __iter__(self):\n"
            "        for i in range(160): yield torch.full((3,), float(i)), os.getpid()\n"
        },
        "",
        "iterable-not-sharded",
    ),
    "an __iter__ of its own": (
        {
            "KIND": "class Mine(torch.utils.data.DataLoader):\n"
            "    def __iter__(self): return super().__iter__()\n"
            "torch.utils.data.DataLoader = Mine"
        },
        "",
        "own-way-of-batches",
    ),
    "a sampler that is used up": (
        {"KIND": "def numbers():\n    for _ in range(160): yield random.randrange(80)\n"},
        "sampler=numbers()",
        "raised",
    ),
    "a data set that counts": (
        {
            "KIND": "class Slow(Slow):\n    seen = 0\n    def __getitem__(self, i):\n"
            "        self.seen += 1\n        return super().__getitem__(i)\n"
        },
        "",
        "dataset-changes-itself",
    ),
    "a context of its own": (
        {},
        "num_workers=1, multiprocessing_context='fork'",
        "workers-not-forked",
    ),
    "two loaders side by side": (
        {
            "KIND": "other = iter(torch.utils.data.DataLoader(list(range(10**6))))",
            "BODY": "next(other)",
        },
        "",
        "steps-take-other-batches",
    ),
}


@pytest.mark.parametrize("how", REFUSED)
def test_what_cannot_have_a_second_loader_is_left_to_launches(how: str, tmp_path: Path) -> None:
    parts, loader, why = REFUSED[how]
    text = script(loader, epochs=2, **parts)
    if how.startswith("two"):  # the training loader is the second one that is made
        text = text.replace("other = iter", "other = None\ndef make(): return iter")
        text = text.replace("rows = open", "other = make()\nrows = open")
    ran = run(tmp_path, text, arm("loader-workers", num_workers=3), after="continue")
    (fix,) = ran.main["fixes"]
    assert (fix["state"], fix["why"]["fact"]) == ("failed", why), (fix, ran.stderr[-500:])
    if how not in ("a sampler that is used up", "two loaders side by side"):
        told = ran.main["loaders"][0]["no_second"]
        assert told == fix["why"], "seen in any launch, so that none is planned for it"
    if how == "a data set that counts":
        assert fix["why"]["values"] == {"attribute": "self.seen"}
    if how == "a sampler that is used up":
        assert "its sampler cannot be copied" in fix["why"]["values"]["message"]
    assert 1 not in [one for one, _ in blocks(ran)]
    assert ran.returncode == 0 and "left: 0" in ran.stdout.replace("left: 1", "left: 0")
