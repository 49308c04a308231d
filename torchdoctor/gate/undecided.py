"""The result of a gate that ended before anything was measured."""

from __future__ import annotations

from datetime import datetime, timezone

from torchdoctor import __version__
from torchdoctor.machine.environment import environment
from torchdoctor.words import Workload, WorkloadRecord
from torchdoctor.words.gate import GateReport


def undecided(
    workload: Workload, reference: str, why: str, *, interrupted: bool = False, broken: bool = False
) -> GateReport:
    """A result without figures, so that who reads the files learns the reason.

    Args:
        workload: what was to be compared.
        reference: with what.
        why: it could not be; a sentence.
        interrupted: by Ctrl-C.
        broken: it is the working tree's program that cannot be measured.
    """
    return GateReport(
        torchdoctor_version=__version__,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        workload=WorkloadRecord(command=workload.command, cwd=workload.cwd),
        environment=environment(workload.python),
        reference=reference,
        verdict="inconclusive",
        sentence=why,
        interrupted=interrupted,
        broken=broken,
    )
