"""Fixes switched on and off in a running program: in the right blocks, and back again."""

from __future__ import annotations

import itertools
import json
import textwrap
from pathlib import Path
from typing import Any

import pytest
from probed import Probed, run_probed

from torchdoctor.advice import catalogue
from torchdoctor.probe import step_log

pytestmark = pytest.mark.slow

SCRIPT = """
import json, sys, torch
torch.manual_seed(0)
torch.set_num_threads(2)
net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
data = torch.utils.data.TensorDataset(torch.randn(2400, 3, 8, 8))
seen = []
def watch(module, args, output):
    weight, state = net[0].weight, optimizer.state.get(net[0].weight, {})
    momentum = state.get("momentum_buffer")
    seen.append({
        "threads": torch.get_num_threads(),
        "dtype": str(output.dtype),
        "format": weight.is_contiguous(memory_format=torch.channels_last),
        "input": args[0].is_contiguous(memory_format=torch.channels_last),
        "momentum": None if momentum is None else momentum.stride() == weight.stride(),
        "none": zeroed,
        "optimizer": [optimizer.param_groups[0].get(name) for name in ("fused", "foreach")],
        "products": [torch.get_float32_matmul_precision(), getattr(torch.backends.mkldnn, "conv",
            None) and torch.backends.mkldnn.conv.fp32_precision],
    })
net[0].register_forward_hook(watch)
zeroed = None
try:
    for x, in torch.utils.data.DataLoader(data, batch_size=4):
        net(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        zeroed = net[0].bias.grad is None
        BODY
        with open("seen.json", "a") as file: print(json.dumps(seen[-1]), file=file)
except Exception as error:
    print(type(error).__name__, error)
print("end")
"""


THREADED = """
import threading, torch
net = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(2400, 8))
def train():
    for x, in torch.utils.data.DataLoader(data, batch_size=4):
        net(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
START
"""


def arm(*fixes: str, **settings: Any) -> list[dict[str, Any]]:
    found = catalogue.fixes()
    return [{"id": fix, "file": found[fix].file, "settings": settings} for fix in fixes]


def run(
    folder: Path,
    arms: list[list[dict[str, Any]]],
    body: str = "pass",
    script: str = SCRIPT,
    **wanted: Any,
) -> Probed:
    """The script in a switching launch: 3 iterations to warm up, blocks of 4 after 2 discarded."""
    (folder / "train.py").write_text(script.replace("BODY", textwrap.dedent(body)))
    switch = {"arms": arms, "rounds": 2, "block_steps": 4, "discard_steps": 2, "seed": 3, **wanted}
    return run_probed(
        ["train.py"],
        folder,
        folder,
        forked=True,
        purpose="time",
        boundary={"kind": "loader", "ident": 0, "every": 1},
        warmup_steps=3,
        switch=switch,
        timeout=600,
    )


def on_in_iterations(ran: Probed) -> list[int]:
    """Which arm was on in each iteration, from the log; the iteration of row i is row i."""
    rows, now, found = ran.events[ran.main_pid], 0, []
    for code, ident, _, _ in rows:
        if code == step_log.SWITCH:
            now = int(ident)
        elif code == step_log.FORWARD_BEGIN:
            found.append(now)
    return found


def blocks(ran: Probed) -> list[tuple[int, int, list[int]]]:
    """(arm, round, iterations that began in it and the one after) of each block."""
    found: list[tuple[int, int, list[int]]] = []
    inside = False
    for code, ident, _, value in ran.events[ran.main_pid]:
        if code == step_log.BLOCK_BEGIN:
            found.append((int(ident), int(value), []))
            inside = True
        elif code == step_log.BLOCK_END:
            inside = False
        elif code == step_log.BOUNDARY and inside:
            found[-1][2].append(int(value))
    return found


def seen(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "seen.json").read_text().splitlines()]


def test_each_fix_is_on_in_its_own_blocks_alone(tmp_path: Path) -> None:
    arms = [
        arm("cpu-threads", num_threads=1),
        arm("mixed-precision", dtype="bfloat16"),
        arm("channels-last"),
        arm("set-to-none"),
    ]
    ran = run(tmp_path, arms)
    assert ran.stopped_by == "done" and ran.said() == [], ran.stderr
    assert [fix["state"] for fix in ran.main["fixes"]] == ["applied"] * 4
    on, looks = on_in_iterations(ran), seen(tmp_path)
    assert set(on) == {0, 1, 2, 3, 4}
    before = [0, *on]  # what zero_grad did was done in the iteration before
    for number, look in enumerate(looks):
        now = on[number]
        assert look["threads"] == (1 if now == 1 else 2), number
        assert look["dtype"] == ("torch.bfloat16" if now == 2 else "torch.float32"), number
        assert look["format"] == look["input"] == (now == 3), number
        assert look["momentum"] in (None, True), (
            "the optimizer's state keeps its parameter's format"
        )
        assert look["none"] in (None, before[number] == 4), number


def test_rounds_are_baseline_all_arms_baseline(tmp_path: Path) -> None:
    ran = run(tmp_path, [arm("cpu-threads", num_threads=1), arm("set-to-none")])
    found = blocks(ran)
    assert [round for _, round, _ in found] == [0] * 4 + [1] * 4
    for number in (0, 1):
        order = [arm for arm, round, _ in found if round == number]
        assert order[0] == order[3] == 0 and sorted(order[1:3]) == [1, 2]
    for _, _, iterations in found:
        assert len(iterations) == 5 and iterations[-1] - iterations[0] == 4
    # Between two blocks lie the two that are discarded.
    for (_, _, one), (_, _, other) in itertools.pairwise(found):
        assert other[0] - one[-1] == 2


def test_one_arm_alone_runs_in_abba_order(tmp_path: Path) -> None:
    ran = run(tmp_path, [arm("cpu-threads", num_threads=1)], rounds=6)
    arms = [one for one, _, _ in blocks(ran)]
    rounds = [tuple(arms[i : i + 4]) for i in range(0, 24, 4)]
    assert len(arms) == 24 and set(rounds) == {(0, 1, 1, 0), (1, 0, 0, 1)}


def test_training_goes_on_as_if_nothing_had_been_switched(tmp_path: Path) -> None:
    """set-to-none changes no number: each loss is the one of an untouched run."""
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    switched = run(tmp_path / "a", [arm("set-to-none")])
    plain = run(tmp_path / "b", [arm("set-to-none")], rounds=0)
    ours, theirs = switched.losses(), plain.losses()
    assert len(ours) > 40 and (ours[: len(theirs)] == theirs[: len(ours)]).all()


BROKEN = {
    "on": """
def apply(torch, settings, program):
    def on(): raise ValueError("no")
    program.at_first_batch(on, lambda: None)
""",
    "off": """
def apply(torch, settings, program):
    def off(): raise ValueError("cannot")
    program.at_first_batch(program.applied, off)
""",
    "no undo": """
def apply(torch, settings, program):
    program.at_first_batch(program.applied)
""",
    "refuses": """
def apply(torch, settings, program):
    program.at_first_batch(lambda: program.refuse("not here"), lambda: None)
""",
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_failing_switch_never_stops_the_program(how: str, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN[how])
    broken = [{"id": "broken", "file": str(tmp_path / "broken.py"), "settings": {}}]
    ran = run(tmp_path, [broken, arm("cpu-threads", num_threads=1)])
    assert ran.stopped_by == "done" and ran.stdout == "", ran.stderr
    state = ran.main["fixes"][0]
    assert state["state"] == ("refused" if how == "refuses" else "failed")
    arms = [one for one, _, _ in blocks(ran)]
    if how == "off":
        assert state["why"]["fact"] == "not-switched-off"
        told = {"error": "ValueError", "message": "cannot"}
        assert state["why"]["values"]["why"]["values"] == told, "what its code said"
        assert arms[-1] == 1, "nothing after it can be compared"
    else:
        assert arms[:3] == [0, 2, 0] and sorted(arms[3:]) == [0, 0, 2, 2]


def test_an_arm_that_is_far_slower_is_given_up(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("""
import time
def apply(torch, settings, program):
    def slow():
        program.applied()
        time.sleep(1.0)
    program.at("backward", slow)
""")
    slow = [{"id": "slow", "file": str(tmp_path / "slow.py"), "settings": {}}]
    arms = [slow, arm("cpu-threads", num_threads=1)]
    ran = run(tmp_path, arms, block_steps=20, block_most_s=2.0, rounds=3)
    found = blocks(ran)
    (slow_block,) = [iterations for one, _, iterations in found if one == 1]
    assert 2 <= len(slow_block) <= 4
    assert len({round for _, round, _ in found}) == 3


def test_one_pause_in_an_arms_block_does_not_throw_it_out(tmp_path: Path) -> None:
    """An evaluation that fell into its block once made a good fix one that cannot be compared."""
    (tmp_path / "pausing.py").write_text("""
import time
def apply(torch, settings, program):
    calls = []
    def pause():
        program.applied()
        calls.append(1)
        if len(calls) == 8: time.sleep(6.0)
    program.at("backward", pause)
""")
    pausing = [{"id": "pausing", "file": str(tmp_path / "pausing.py"), "settings": {}}]
    ran = run(tmp_path, [pausing], block_steps=10, block_most_s=5.0, rounds=3)
    own = [len(iterations) for one, _, iterations in blocks(ran) if one == 1]
    assert len(own) == 6 and own[0] < 10 and set(own[1:]) == {11}


def test_a_loop_in_a_thread_of_its_own_is_not_switched(tmp_path: Path) -> None:
    """A thread that fetches ahead would switch in the middle of a step of the main thread."""
    arms = [arm("cpu-threads", num_threads=1)]
    for name in ("main", "thread"):
        (tmp_path / name).mkdir()
    ran = run(tmp_path / "main", arms, script=THREADED.replace("START", "train()"))
    assert ran.stopped_by == "done" and blocks(ran)
    start = "threading.Thread(target=train).start()"
    ran = run(tmp_path / "thread", arms, script=THREADED.replace("START", start))
    assert ran.stopped_by == "done" and blocks(ran) == []


def test_a_side_that_takes_time_to_settle_gets_it_before_and_after(tmp_path: Path) -> None:
    arms = [arm("cpu-threads", num_threads=1), arm("set-to-none")]
    # The data are not to end while a side settles.
    ran = run(tmp_path, arms, '__import__("time").sleep(0.02)', settle_s=[0.4, 0.0])
    now, before, waits = 0, 0, {True: [], False: []}
    for code, ident, t_ns, _ in ran.events[ran.main_pid]:
        if code == step_log.SWITCH:
            before, now, switched_ns = now, int(ident), t_ns
        elif code == step_log.BLOCK_BEGIN and before != now:
            waits[1 in (before, now)].append((t_ns - switched_ns) / 1e9)
            before = now
    assert min(waits[True]) >= 0.35 and waits[False], "a little passes before the switch is noted"


def test_no_round_begins_after_its_time(tmp_path: Path) -> None:
    ran = run(tmp_path, [arm("set-to-none")], rounds=50, most_s=0.0)
    assert {round for _, round, _ in blocks(ran)} == {0}


def test_a_program_that_crashes_under_a_fix_leaves_its_blocks(tmp_path: Path) -> None:
    body = """
        if len(seen) > 30 and torch.get_num_threads() == 1: raise SystemExit("crash")
    """
    ran = run(tmp_path, [arm("cpu-threads", num_threads=1)], body.strip(), rounds=9)
    assert ran.returncode == 1 and ran.stderr.endswith("crash\n")
    assert len(blocks(ran)) >= 2


def test_a_program_that_sets_threads_itself_gets_its_number_back(tmp_path: Path) -> None:
    ran = run(tmp_path, [arm("cpu-threads", num_threads=1)], "torch.set_num_threads(3)")
    for number, (now, look) in enumerate(zip(on_in_iterations(ran), seen(tmp_path), strict=False)):
        assert look["threads"] == (1 if now else 3 if number else 2), number


def test_products_are_as_precise_as_before_once_bfloat16_is_switched_off(tmp_path: Path) -> None:
    ran = run(tmp_path, [arm("cpu-bfloat16-products")])
    looks = seen(tmp_path)
    for now, look in zip(on_in_iterations(ran), looks, strict=False):
        assert (look["products"] == looks[0]["products"]) != bool(now)
        assert look["products"][0] == ("medium" if now else "highest")


def test_an_optimizer_is_fused_in_its_blocks_alone_and_counts_every_step(tmp_path: Path) -> None:
    made = "Adam(net.parameters(), foreach=True)"
    script = SCRIPT.replace("SGD(net.parameters(), lr=0.1, momentum=0.9)", made)
    body = "assert int(optimizer.state[net[0].weight]['step']) == len(seen)"
    ran = run(tmp_path, [arm("fused-optimizer", fused=True)], body, script)
    assert ran.stopped_by == "done" and ran.said() == []
    on = on_in_iterations(ran)
    assert 0 < sum(on) < len(on)
    for now, look in zip(on, seen(tmp_path), strict=False):
        assert look["optimizer"] == ([True, None] if now else [None, True])


def test_an_optimizer_of_sparse_gradients_stays_as_it_is(tmp_path: Path) -> None:
    """Fused, it would raise in the program's own step."""
    rows = "net[0].rows = torch.nn.Embedding(4, 8, sparse=True)\nseen = []"
    script = SCRIPT.replace("seen = []", rows)
    ran = run(tmp_path, [arm("fused-optimizer", fused=True)], script=script)
    (fix,) = ran.main["fixes"]
    assert fix["why"]["fact"] == "gradients-may-be-sparse" and ran.said() == []
    assert not any(look["optimizer"][0] for look in seen(tmp_path))


def test_every_fix_between_steps_can_be_switched(tmp_path: Path) -> None:
    """`when` promises it: none may say in a running program that it cannot be undone."""
    fixes = [fix for fix in catalogue.fixes().values() if fix.when == "between steps"]
    # What a program that trains refuses would break it: those have their own examples.
    fixes = [fix for fix in fixes if ({}, "program-trains") not in fix.refusals]
    examples = [(fix.ident, fix.example.settings) for fix in fixes if fix.example]
    ran = run(tmp_path, [arm(ident, **settings) for ident, settings in examples])
    assert ran.stopped_by == "done" and ran.said() == []
    for fix in ran.main["fixes"]:
        if fix["fix"] == "prefetch-factor":  # there is nobody to prefetch
            assert fix["why"]["fact"] == "no-workers-to-prepare"
        else:
            assert fix["state"] != "failed", fix


LOADER = """
import sys, time, torch
class Slow(torch.utils.data.Dataset):
    def __len__(self): return 400
    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.full((3,), float(index))
net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-9)
loader = torch.utils.data.DataLoader(Slow(), batch_size=4)
for epoch in range(9):
    for x in loader:
        print(int(x[0, 0]), flush=True)
        IN_PLACE
        net(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if epoch == 0 and x[0, 0] == 96: print("evaluated", sum(len(y) for y in loader), flush=True)
"""


def without_loader(tmp_path: Path, in_place: str = "pass", **wanted: Any) -> Probed:
    """The loop above; batches of an iteration are told by their first sample."""
    (tmp_path / "train.py").write_text(LOADER.replace("IN_PLACE", in_place))
    module = catalogue.ceilings()["loader-batches"]
    ceiling = [{"id": "ceiling", "file": module.file, "settings": {"loader": 0}}]
    switch = {"arms": [ceiling], "rounds": 2, "block_steps": 6, "discard_steps": 2, "seed": 3}
    return run_probed(
        ["train.py"],
        tmp_path,
        tmp_path,
        forked=True,
        purpose="time",
        boundary={"kind": "loader", "ident": 0, "every": 1},
        warmup_steps=3,
        switch={**switch, **wanted},
        timeout=600,
    )


def test_the_loop_without_its_loader(tmp_path: Path) -> None:
    ran = without_loader(tmp_path, rounds=3)
    assert ran.said() == [] and ran.main["fixes"][0]["state"] == "applied"
    on = on_in_iterations(ran)
    seen = [int(line) for line in ran.stdout.splitlines() if line.isdigit()]
    first = on.index(1)
    kept = seen[first : first + 2]
    fetched = []
    for number, (arm, batch) in enumerate(zip(on, seen, strict=False)):
        if arm == 0:
            fetched.append(batch)
        elif number >= first + 2:
            assert batch in kept, "answered from memory"
    # The loader was left alone meanwhile: no batch of the training was lost or came twice.
    assert fetched == [4 * n % 400 for n in range(len(fetched))]
    assert "evaluated 400" in ran.stdout or len(fetched) < 25
    rows = {one: [] for one in (0, 1)}
    log = ran.events[ran.main_pid]
    for one, _, iterations in blocks(ran):
        at = log[(log[:, 0] == step_log.BOUNDARY) & (log[:, 3] == iterations[0])][0, 2]
        end = log[(log[:, 0] == step_log.BOUNDARY) & (log[:, 3] == iterations[-1])][0, 2]
        rows[one].append(end - at)
    assert min(rows[0]) >= 6 * 4 * 2_000_000, "every sample takes 2 ms"
    assert min(rows[1]) < min(rows[0])


def test_an_evaluation_over_the_training_loader_comes_to_its_end(tmp_path: Path) -> None:
    """It learns nothing, so it is not answered from memory."""
    ran = without_loader(tmp_path, block_steps=60, rounds=1)
    assert "evaluated 400" in ran.stdout and ran.stopped_by == "done"


def test_batches_that_the_program_changes_are_not_replayed(tmp_path: Path) -> None:
    ran = without_loader(tmp_path, in_place="x.add_(0.25)")
    fix = ran.main["fixes"][0]
    assert fix["state"] == "refused" and fix["why"]["fact"] == "changes-its-batches"
    seen = [int(line) for line in ran.stdout.splitlines() if line.isdigit()]
    assert seen == [4 * n % 400 for n in range(len(seen))]
