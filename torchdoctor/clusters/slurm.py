"""Nodes of Slurm, through its own command srun.

srun starts, places and watches, and its end is the end of its job: nothing has to be asked for
later. A pair is a job of its own, or a step of the job that torchdoctor was started in.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from torchdoctor.clusters.allocation import allocation, asked
from torchdoctor.clusters.commands import CommandNode
from torchdoctor.schema import Evidence, fact
from torchdoctor.schema.errors import UsageError

_JOB = "TORCHDOCTOR_JOB"  # the name of the job that torchdoctor itself asked for
_PAIR = "-pair"
_REFUSED = 255  # how srun ends for what is wrong with its options, or with the job
_END_S = 90.0  # for a run in a job to end its launches and write its report
# Options that say themselves how much of a node a pair gets.
_OWN_SHARE = ("-c", "--cpus", "--exclusive", "--gpus", "-G", "--gres", "--mem")


def options_of(text: str) -> list[str]:
    """Return srun's options as they were typed; raise UsageError for anything else."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--on 'slurm={text}' cannot be read ({error}).") from None
    if words and not words[0].startswith("-"):
        raise UsageError(
            f"--on slurm= takes srun's own options, not '{words[0]}': write it like "
            "--on 'slurm=--partition=gpu --account=team --time=30'."
        )
    return words


def run_in_a_job(text: str, gpus: int) -> int | None:
    """Run this same command line on a node; return its exit code, or None: this is a node.

    Ctrl-C interrupts it there; whatever happens, no job is left.
    """
    options = options_of(text)
    given = allocation()
    if given is not None and given.here is not None:
        return None
    lacks = "command srun was not found" if shutil.which("srun") is None else ""
    if not lacks and not asked("sinfo", "--noheader"):
        lacks = "controller does not answer (sinfo)"
    if lacks:
        raise UsageError(f"Slurm's {lacks}: run it where Slurm can be reached, or without --on.")
    name = f"torchdoctor-{secrets.token_hex(4)}"
    environment = {**os.environ, "SLURM_EXIT_ERROR": str(_REFUSED)}
    if given is None:
        environment[_JOB], options = name, [*_share(options, gpus), *options]
    popen = subprocess.Popen(
        [*_srun(name), *options, sys.executable, "-m", "torchdoctor", *sys.argv[1:]],
        env=environment,
        stdin=subprocess.DEVNULL if sys.stdin is None or sys.stdin.isatty() else None,
        start_new_session=True,  # Ctrl-C of the terminal is for us alone
    )
    try:
        code = popen.wait()
    except KeyboardInterrupt:
        _scancel("--signal=INT", "--state=RUNNING", f"--name={name}")
        with contextlib.suppress(subprocess.TimeoutExpired):
            popen.wait(_END_S)
        return 130
    finally:
        popen.terminate()
        _scancel(f"--name={name},{name}{_PAIR}")
        popen.wait()
    # srun ends with 0 where the node failed.
    state = asked("squeue", "--noheader", "--states=all", f"--name={name}", "--format=%T").strip()
    if code == _REFUSED or state in ("NODE_FAIL", "PREEMPTED"):
        raise UsageError(f"Slurm did not run it to its end ({state or 'srun says above why'}).")
    return code


def nodes(
    text: str, count: int, gpus: int, folder: Path
) -> tuple[list[CommandNode], list[Evidence]]:
    """Return the nodes for pairs, this one first, and what the report has to say of them.

    In a job that somebody else asked for these are its nodes, `count` (0: all) of them at most.
    """
    given = allocation()
    options = options_of(text)
    if given is None:
        raise UsageError("--on slurm runs on a node of Slurm only.")
    here = CommandNode(
        name=given.here or "this node", prefix=[], folder=folder, environment=os.environ
    )
    name = os.environ.get(_JOB)
    if name is not None:
        clean = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_")}
        clean |= {k: v for k, v in os.environ.items() if k in ("SLURM_CONF", "SLURM_CLUSTERS")}
        command = [*_srun(name + _PAIR), *_share(options, gpus), *options]
        further = [
            CommandNode(name=f"job-{n}", prefix=command, folder=folder, environment=clean)
            for n in range(2, (count or 2) + 1)
        ]
        return [here, *further], []
    wanted = [node for node in given.nodes if node != given.here][: count - 1 if count else None]
    command = [*_srun("torchdoctor" + _PAIR), *_share(options, gpus, in_job=True), *options]
    steps = [
        CommandNode(
            name=node, prefix=[*command, f"--nodelist={node}"], folder=folder,
            environment=os.environ,
        )
        for node in wanted
    ]  # fmt: skip
    if count <= len(given.nodes):
        return [here, *steps], []
    fewer = fact("fewer-nodes-in-job", asked=count, job=given.job, nodes=len(given.nodes))
    return [here, *steps], [fewer]


def _srun(name: str) -> list[str]:
    return ["srun", f"--job-name={name}", "--nodes=1", "--ntasks=1", "--kill-on-bad-exit=1"]


def _share(options: Sequence[str], gpus: int, in_job: bool = False) -> list[str]:
    """Return srun's options for how much of a node a pair gets, where nobody says it."""
    if gpus:
        return [f"--gpus-per-node={gpus}"]
    if any(option.startswith(_OWN_SHARE) for option in options):
        return []
    if in_job:
        cpus = os.environ.get("SLURM_CPUS_ON_NODE")
        return [f"--cpus-per-task={cpus}"] if cpus else []
    return ["--exclusive"]  # two pairs on one node would disturb each other


def _scancel(*filters: str) -> None:
    asked("scancel", "--quiet", f"--user={os.getuid()}", *filters)
