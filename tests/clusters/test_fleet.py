"""What a fleet makes of nodes that measure, lose pairs, lack something or differ: none is real."""

from __future__ import annotations

import errno
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from cluster_pairs import QUICK, launches, pair

from torchdoctor.bench.engine import PairTask, PairTimings
from torchdoctor.bench.failures import Lost
from torchdoctor.clusters.fleet import Fleet, NoNodeLeftError
from torchdoctor.clusters.tasks import Result, Task, decoded, encoded
from torchdoctor.launch.launch_spec import UNTOUCHED, FixFile
from torchdoctor.schema import Block, Evidence, LaunchTiming, Workload, fact, message, within
from torchdoctor.schema.errors import UsageError

WORKLOAD = Workload(command=["python", "train.py"], cwd="/work")
TIMING = LaunchTiming(
    ended="measured", step_s=[0.1], blocks=[Block(step_s=[0.1])], losses=[None, math.nan, 1.0]
)
DONE = Result(node="a", kind="fast CPU, 8 CPUs", timings=[TIMING, TIMING], seconds=[9.0])


@dataclass
class Script:
    """A task whose outcome is known; and a node of such tasks."""

    name: str
    outcomes: Sequence[bytes | Evidence | None] = ()
    refuses: OSError | None = None
    begun: list[Task] = field(default_factory=list)
    cancelled: int = 0

    def begin(self, data: bytes) -> Script:
        if self.refuses is not None:
            raise self.refuses
        self.begun.append(decoded(data, Task, "a task"))
        return self

    def result(self) -> bytes | Evidence | None:
        return self.outcomes[len(self.begun) - 1]

    def cancel(self) -> None:
        self.cancelled += 1


def fleet(*nodes: Script) -> Fleet:
    return Fleet([*nodes], launches(WORKLOAD), [])


def took(nodes: Fleet) -> PairTimings | Lost | None:
    nodes.begin(pair())
    outcome = nodes.end(0.0)
    return outcome and outcome[1]


def test_a_task_and_its_result_come_through_as_they_were() -> None:
    fix = FixFile("tf32", Path(__file__).parents[2] / "torchdoctor" / "fixes" / "tf32.py", {"n": 1})
    contents = {"/a.py": b"x\xff", "/b": "/c", "/d": None}
    arm = replace(QUICK, fixes=(fix,), contents=contents, variables={"A": None})
    sent = PairTask(arms=(UNTOUCHED, arm), beside=False, swapped=True)
    task = Task.of(launches(WORKLOAD, timeout_s=math.inf), sent, 3)
    assert decoded(encoded(task), Task, "a task") == task and task.pair() == sent
    assert task.arms[1].fixes[0][1] == "fixes/tf32.py", "found where that node has torchdoctor"
    back = decoded(encoded(DONE), Result, "a result")
    assert math.isnan(back.timings[0].losses[1] or 0) and back.timings[0].losses[0] is None
    assert back.timings[0].blocks == TIMING.blocks


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x01", encoded(DONE)])
def test_a_damaged_task_is_told_in_a_sentence(data: bytes) -> None:
    with pytest.raises(UsageError, match="the task is damaged"):
        decoded(data, Task, "the task")


def test_another_version_on_a_node_is_told_in_a_sentence() -> None:
    task = replace(Task.of(launches(WORKLOAD), pair(), 0), version="0.0.1")
    with pytest.raises(UsageError, match=r"was written by torchdoctor 0\.0\.1, and here is"):
        decoded(encoded(task), Task, "the task")


def test_each_node_has_one_pair_at_a_time() -> None:
    first, second = Script("a", [None, None]), Script("b", [encoded(DONE), None])
    nodes = fleet(first, second)
    assert (nodes.count, nodes.room) == (2, 2)
    nodes.begin(pair())
    nodes.begin(pair())
    assert nodes.room == 0 and len(first.begun) == len(second.begun) == 1
    ended = nodes.end(0.0)
    assert ended is not None and isinstance(ended[1], PairTimings) and nodes.room == 1
    assert nodes.end(0.0) is None
    nodes.close()
    assert (first.cancelled, second.cancelled) == (1, 0) and nodes.room == 2


def test_a_lost_node_costs_its_pair_and_after_two_in_a_row_gets_no_more() -> None:
    killed = message("killed.")
    node = Script("a", [killed, encoded(DONE), killed, killed])
    nodes = fleet(node)
    results = [took(nodes) for _ in range(4)]
    assert [type(x) for x in results] == [Lost, PairTimings, Lost, Lost] and nodes.count == 0
    assert fact("node-left-out", node="a", why=within(killed)) in nodes.doubts
    with pytest.raises(NoNodeLeftError) as raised:
        nodes.begin(pair())
    assert raised.value.why.values["nodes"] == [{"node": "a", "why": within(killed)}]
    assert raised.value.message.endswith("(a: killed.)"), "the error says it at once"


def test_what_a_node_lacks_is_no_failure_of_the_fix() -> None:
    lacking = Result(node="b", problem=fact("torch-not-on-node", python="python", node="b"))
    failed = LaunchTiming(ended="failed", why=message("ImportError: libcuda"))
    broken = replace(DONE, timings=[failed, replace(failed, stopped=True)])
    for result, why in ((lacking, "torch-not-on-node"), (broken, "program-failed-on-node")):
        nodes = fleet(Script("b", [encoded(result)]), Script("a", [encoded(DONE)]))
        assert isinstance(took(nodes), Lost) and nodes.count == 1
        assert isinstance(took(nodes), PairTimings)
        [left_out] = [x.values for x in nodes.doubts if x.fact == "node-left-out"]
        assert (left_out["node"], left_out["why"]["fact"]) == ("b", why)


def test_the_failure_of_a_fix_is_one() -> None:
    failed = LaunchTiming(ended="failed", why=message("ValueError: no"))
    result = replace(DONE, timings=[replace(failed, stopped=True), failed])
    nodes = fleet(Script("a", [encoded(result)]))
    assert isinstance(took(nodes), PairTimings) and nodes.count == 1


def test_a_full_shared_folder_leaves_a_node_out() -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    nodes = fleet(Script("a", refuses=full), Script("b", [encoded(DONE)]))
    assert isinstance(took(nodes), PairTimings)
    full_disk = within(message("No space left on device."))
    assert fact("node-left-out", node="a", why=full_disk) in nodes.doubts


def test_two_kinds_of_nodes_are_told() -> None:
    other = replace(DONE, node="b", kind="slow CPU, 2 CPUs")
    nodes = fleet(Script("a", [encoded(DONE)] * 2), Script("b", [encoded(other)] * 2))
    for _ in range(2):
        took(nodes)
    measured = [{"node": "a", "pairs": 1}, {"node": "b", "pairs": 1}]
    assert nodes.doubts == [
        fact("nodes-measured", nodes=measured),
        fact("nodes-unlike", kinds=["fast CPU, 8 CPUs", "slow CPU, 2 CPUs"]),
    ]
