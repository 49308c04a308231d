"""Programs of several processes on this machine, made of the lines that a page gives."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

import forked_programs

from torchdoctor.advice import catalogue

ONE_THREAD = {"OMP_NUM_THREADS": "1"}
# Of 64 samples two processes with batches of 32 see all in each step, in whatever order.
BEFORE = """
import torch

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x):
        return x + torch.relu(self.linear(x))

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), Block(), Block(), torch.nn.Linear(8, 1))
dataset = [torch.full((4,), i / 64) for i in range(64)]
"""
ALONE = (
    BEFORE
    + """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    optimizer.zero_grad()
    loss = (model(torch.stack(dataset)) - 1).square().mean()
    print("loss", loss.item())
    loss.backward()
    optimizer.step()
"""
)
# A gloo worker thread that frees its last work while the interpreter is torn down aborts the
# process (it wants the GIL there): seen in 4 of 51 runs on a crowded machine, with a barrier too.
AT_THE_END = """
dist.destroy_process_group()
os._exit(0)
"""
AFTER = (
    """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(4):
    loader.sampler.set_epoch(epoch)
    for x in loader:
        optimizer.zero_grad()
        loss = (model(x.to(device)) - 1).square().mean()
        loss.backward()
        optimizer.step()
        mean = loss.detach() / dist.get_world_size()
        dist.all_reduce(mean)
        if dist.get_rank() == 0:
            print("loss", mean.item(), flush=True)
"""
    + AT_THE_END
)


def permanent(fix: str) -> str:
    """The code of a page."""
    page = catalogue.fixes()[fix].text
    section = page.split("Make it permanent\n-----------------\n", 1)[1].split("\n\nSources\n")[0]
    return textwrap.dedent(section)


def torchrun_on_path(folder: Path) -> dict[str, str]:
    """The environment in which `torchrun` is that of this interpreter."""
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    executable(
        programs / "torchrun", f'#!/bin/sh\nexec "{sys.executable}" -m torch.distributed.run "$@"\n'
    )
    return {**os.environ, **ONE_THREAD, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}


def executable(path: Path, text: str) -> None:
    """Write a script that can be started."""
    path.write_text(text)
    path.chmod(0o755)


def shell(command: str, folder: Path, environment: Mapping[str, str]) -> str:
    """What a shell command prints; it must succeed."""
    ran = subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def two_ranks(folder: Path) -> str:
    """What train.py prints in two processes, given what torchrun gives, and forked with torch."""
    place = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    started = []
    for rank in ("0", "1"):
        (folder / rank).mkdir()
        given = {"RANK": rank, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": "2", **place, **ONE_THREAD}
        surroundings = forked_programs.environment(**given)
        streams = forked_programs.streams_in(folder / rank)
        process = forked_programs.start(["train.py"], folder, surroundings, streams)
        started.append((process, streams))
    for process, (_, _, errors) in started:
        assert process.wait() == 0, errors.read_text()
    return "".join(printed.read_text() for _, (_, printed, _) in started)


def at_free_port(command: str) -> str:
    """Not at the port that the page names: another run of these tests would take a place there."""
    assert ":29500" in command
    return command.replace(":29500", f":{free_port()}")


def free_port() -> int:
    """A port where nobody listens."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return int(free.getsockname()[1])


def losses(printed: str) -> list[float]:
    """The losses that a program printed, in order."""
    return [float(found) for found in re.findall(r"loss (\S+)", printed)]


def alone(folder: Path) -> list[float]:
    """The losses of the same training in one process."""
    (folder / "alone.py").write_text(ALONE)
    environment = forked_programs.environment(**ONE_THREAD)
    ran = forked_programs.run(["alone.py"], folder, environment, folder)
    found = losses(ran.stdout)
    assert len(found) == 4
    assert found[-1] < found[0]
    return found
