"""The channel folder of a profiled launch -> its trace, and what the hooks after it saw."""

from __future__ import annotations

from torchdoctor.launch.launch import LaunchResult
from torchdoctor.launch.launch_ending import how_it_ended
from torchdoctor.observe.events import read_channel
from torchdoctor.observe.observation import Profiled
from torchdoctor.words.errors import ProgramFailed, UsageError


def profiled_window(result: LaunchResult) -> Profiled:
    """Read the largest trace of a launch.

    Raises:
        ProgramFailed: where no trace came of it.
    """
    from torchdoctor.trace.summary import read_and_summarise

    traces = sorted(result.channel.glob("trace-*.json.gz"))
    if not traces:
        raise ProgramFailed(
            f"The profiler window gave no trace ({how_it_ended(result)}).", result.exit_code
        )
    largest = max(traces, key=lambda path: path.stat().st_size)
    try:
        trace = read_and_summarise([largest])[0]
    except UsageError as error:
        raise ProgramFailed(
            f"The profiler window gave no trace that can be read: {error}"
        ) from error
    facts = read_channel(result.channel)[1]
    own = facts.get(int(largest.name.split("-")[1].split(".")[0]))
    analysed = own if own is not None and own.analysed_steps else None
    return Profiled(trace=trace, analysed=analysed)
