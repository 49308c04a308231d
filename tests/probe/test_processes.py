"""Children of the program: workers log nothing, trainers log to files of their own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from probed import run_probed
from test_fidelity import write

from torchdoctor.probe import step_log

pytestmark = pytest.mark.slow


LOADING = """
import torch, time
class Data(torch.utils.data.Dataset):
    def __len__(self): return 12
    def __getitem__(self, i):
        time.sleep(0.05)  # longer than a flush interval in all
        torch.ones(2, requires_grad=True).sum().backward()
        return torch.full((2,), float(i))
if __name__ == "__main__":
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(Data(), batch_size=2, num_workers=WORKERS,
        multiprocessing_context=CONTEXT, persistent_workers=PERSISTENT)
    for epoch in range(2):
        for x in loader:
            model(x).sum().backward(); optimizer.step(); optimizer.zero_grad()
    print("trained")
"""


def loading(context: str, persistent: bool) -> str:
    # A spawned worker imports torch anew.
    code = LOADING.replace("CONTEXT", repr(context)).replace("PERSISTENT", str(persistent))
    return code.replace("WORKERS", "1" if context == "spawn" else "2")


@pytest.mark.parametrize(
    ("context", "persistent"), [("fork", False), ("fork", True), ("spawn", True)]
)
def test_loader_workers_log_nothing(context: str, persistent: bool, tmp_path: Path) -> None:
    """Not even where a worker differentiates: that makes it no trainer."""
    write(tmp_path, "train.py", loading(context, persistent))
    run = run_probed([str(tmp_path / "train.py")], tmp_path, tmp_path, forked=True)
    assert (run.returncode, run.stdout) == (0, "trained\n"), run.stderr
    assert run.said() == []
    assert sum(len(one) > 0 for one in run.events.values()) == 1, "a worker wrote events"
    assert len(run.facts) == 1, "a worker wrote facts"
    assert run.count(step_log.BACKWARD_BEGIN) == 12
    assert run.main["loaders"][0]["iterators"] == 2
    assert run.main["loaders"][0]["num_workers"] == (1 if context == "spawn" else 2)


@pytest.mark.parametrize(
    "start",
    [
        "torch.multiprocessing.spawn(train, nprocs=1)",
        "run_all(torch.multiprocessing.get_context('fork'))",
    ],
    ids=["spawn", "fork"],
)
def test_hogwild_children_are_trainers(start: str, tmp_path: Path) -> None:
    write(
        tmp_path,
        "train.py",
        f"""
        import torch, torch.multiprocessing
        def train(rank=0):
            model = torch.nn.Linear(2, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for x in torch.utils.data.DataLoader(torch.ones(10, 2), batch_size=2):
                optimizer.zero_grad(); model(x).sum().backward(); optimizer.step()
        def run_all(context):
            children = [context.Process(target=train) for _ in range(2)]
            for child in children: child.start()
            for child in children: child.join()
        if __name__ == "__main__":
            {start}
        """,
    )
    run = run_probed([str(tmp_path / "train.py")], tmp_path, tmp_path, forked=True)
    assert run.returncode == 0, run.stderr
    trainers = [p for p in run.events if run.count(step_log.OPTIMIZER_END, p)]
    assert len(trainers) == (1 if "spawn" in start else 2)  # a spawned one imports torch anew
    for pid in trainers:
        assert run.count(step_log.BACKWARD_BEGIN, pid) == 5
        assert run.count(step_log.OPTIMIZER_END, pid) == 5
        assert run.count(step_log.FETCH_BEGIN, pid) == 6


def test_child_that_does_not_train_leaves_no_events(tmp_path: Path) -> None:
    write(
        tmp_path,
        "train.py",
        """
        import os, torch
        model = torch.nn.Linear(2, 1)
        model(torch.ones(1, 2)).sum().backward()
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        model(torch.ones(1, 2)).sum().backward()
        """,
    )
    run = run_probed(["train.py"], tmp_path, tmp_path, forked=True)
    assert run.returncode == 0, run.stderr
    assert len(run.events) == 1
    assert run.count(step_log.BACKWARD_BEGIN) == 2


ALONE = ["unshare", "-Ur", "--pid", "--fork"]  # as in a container: the first process is 1
NODES = """
import subprocess, sys
nodes = [subprocess.Popen([*ALONE, sys.executable, "rank.py"]) for node in range(2)]
sys.exit(max(node.wait() for node in nodes))
"""
RANK = """
import os, torch
print(os.getpid())
weight = torch.ones(2, requires_grad=True)
for step in range(10):
    weight.sum().backward()
"""


def test_ranks_of_one_pid_on_two_nodes_keep_their_own_files(tmp_path: Path) -> None:
    if subprocess.run([*ALONE, "true"], capture_output=True).returncode:
        pytest.skip("no process namespaces here")
    write(tmp_path, "nodes.py", NODES.replace("ALONE", repr(ALONE)))
    write(tmp_path, "rank.py", RANK)
    run = run_probed([str(tmp_path / "nodes.py")], tmp_path, tmp_path)
    assert (run.returncode, run.stdout.split()) == (0, ["1", "1"]), run.stderr
    assert sorted(fact["pid"] for fact in run.facts.values()) == [1, 1]
    assert [run.count(step_log.BACKWARD_BEGIN, number) for number in run.facts] == [10, 10]
    assert len(list(run.channel.glob("losses-*.bin") if run.channel else ())) == 2
