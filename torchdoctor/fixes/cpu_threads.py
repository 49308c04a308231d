"""Give the operators as many threads as there are cores for them.

## What it does
Sets the number of threads of an operator (`torch.set_num_threads`) once training begins, and
ignores what the program sets afterwards. Several numbers are tried: all usable cores, those that
other programs or the loader's workers leave, half, and one.

## Why it helps
By default PyTorch uses as many threads as the *machine* has cores. If the job, other programs or
workers leave it fewer, threads wait for each other. Small operators are fastest on one thread.

## Risks
Sums are split among threads, so another number of threads rounds differently. The best number
depends on the machine: set it from the outside (`OMP_NUM_THREADS`) if the program runs on several.

## Make it permanent
    torch.set_num_threads(4)                   # or OMP_NUM_THREADS=4 in the environment

## Sources
- PyTorch documentation, "CPU threading and TorchScript inference" (intra-op threads):
  https://docs.pytorch.org/docs/stable/notes/cpu_threading_torchscript_inference.html
"""

import os
from typing import Any

from torchdoctor.edits import Edit
from torchdoctor.edits.calls import call_edits, on_top
from torchdoctor.queries.hardware import much_load
from torchdoctor.queries.lookup import place, training_loaders
from torchdoctor.queries.touched import busy_workers_wait, operators_on_cpu, several
from torchdoctor.schema import Evidence, Example, FixSpec, Recording, Settings, Touches, fact

_CPU_SHARE = 0.05  # of the step, on a GPU: below, threads on the CPU cannot matter


def refuses(recording: Recording) -> Evidence | None:
    share = recording.shares.cpu
    if recording.has_gpu and (share is None or share < _CPU_SHARE):
        return fact("model-on-gpu")
    if recording.processes and not settings(recording):
        return fact("one-cpu")
    return None


def settings(recording: Recording) -> list[Settings]:
    """Return the free cores, all, those that workers leave, half, one; without today's number."""
    cores = _cores(recording)
    today = recording.main.flags.num_threads
    workers = max(
        (training_loader.num_workers for training_loader in training_loaders(recording)), default=0
    )
    free = round(cores - (much_load(recording.sensors.other_load_cpus, cores) or 0))
    numbers = [max(free, 1), cores, max(cores - workers, 1), max(cores // 2, 1), 1]
    return [{"num_threads": n} for n in dict.fromkeys(numbers) if n != today]


def touches(recording: Recording) -> Touches:
    """Return the operators, which more cores divide among them, and waits for busy workers."""
    today = recording.main.flags.num_threads
    # Fewer threads may end waits of any length, and of one thread none can be taken away.
    left = 1.0 / _cores(recording) if today == 1 else 0.0
    return several(operators_on_cpu(recording, left), busy_workers_wait(recording))


def ladder(recording: Recording) -> dict[str, Any]:
    """Return the range to search: small operators are often fastest on some of many cores."""
    today = recording.main.flags.num_threads
    return {"setting": "num_threads", "least": 1, "most": _cores(recording), "today": today}


def _cores(recording: Recording) -> int:
    environment = recording.environment
    # Two hyper-threads share the units that an operator keeps busy.
    return max(min(environment.whole_cpus, environment.cpu_cores or 1), 1)


def apply(torch: Any, settings: Settings, program: Any) -> None:
    wanted, pid = int(settings["num_threads"]), os.getpid()
    set_number: list[Any] = []  # torch's own function
    asked: list[int] = []  # while it is kept: the number that the program would have

    def make(old: Any) -> Any:
        def set_num_threads(number: int) -> None:
            # A forked loader worker sets its own number, which must not be ours.
            if not asked or os.getpid() != pid:
                old(number)
            else:
                asked[:] = [number]

        set_number.append(old)
        return set_num_threads

    def keep() -> None:
        if os.getpid() == pid:
            asked[:] = [torch.get_num_threads()]
            set_number[0](wanted)
            program.applied(num_threads=torch.get_num_threads())

    def go_back() -> None:
        if asked:
            set_number[0](asked.pop())

    program.set_reason("training-did-not-begin")
    program.replace(torch, "set_num_threads", make)
    program.at_first_batch(keep, go_back)


def instruction(settings: Settings, recording: Recording) -> str:
    call = f"torch.set_num_threads({settings['num_threads']})"
    if (location := recording.main.flags.num_threads_location) is not None:
        return f"{place(recording, location, '')}  {call}"
    return f"{call}  # after the imports; or OMP_NUM_THREADS={settings['num_threads']}"


def edits(settings: Settings, recording: Recording) -> list[Edit]:
    if (location := recording.main.flags.num_threads_location) is not None:
        return call_edits(recording, location, "set_num_threads", dict(settings))
    return on_top(recording, f"torch.set_num_threads({settings['num_threads']})")


FIX = FixSpec(
    name="CPU threads",
    treats=("too-many-threads", "many-small-kernels", "other-load"),
    keeps_results="within rounding",
    needs_free_cpus=True,
    when="between steps",
    p_helps=0.2,  # gained in 4 of 17 programs of benchmarks/logs
    settles_s=0.3,  # threads that begin, or wake after seconds asleep, are first placed on cores
    untried_needs=("too-many-threads", "other-load"),
    touches=touches,
    refuses=refuses,
    sentences={
        "model-on-gpu": "The model is on a GPU, where the operators' CPU threads hardly matter.",
        "one-cpu": "There is one usable CPU, and operators already use one thread.",
    },
    settings=settings,
    ladder=ladder,
    suits=lambda trace: not trace.has_device,
    apply=apply,
    location=lambda recording: recording.main.flags.num_threads_location,
    instruction=instruction,
    edits=edits,
    example=Example(
        code="""
from torch.utils.data import DataLoader, Dataset
class Threads(Dataset):
    def __len__(self):
        return 2
    def __getitem__(self, index):
        return torch.ones(4), torch.get_num_threads()
if __name__ == "__main__":
    torch.set_num_threads(3)
    model = torch.nn.Linear(4, 1)
    for x, threads in DataLoader(Threads(), batch_size=2, num_workers=1):
        torch.set_num_threads(3)
        model(x).sum().backward()
        print("training:", torch.get_num_threads(), "worker:", threads.tolist())
""",
        settings={"num_threads": 1},
        without="training: 3 worker: [1, 1]",
        with_fix="training: 1 worker: [1, 1]",
    ),
)
