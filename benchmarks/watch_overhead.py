"""What `torchdoctor watch` costs a step: within one run, and launch beside launch with a rival.

    python benchmarks/watch_overhead.py blocks [--step-ms 1 5 50] [--loop plain lightning trainer]
    python benchmarks/watch_overhead.py launches [--rival traceml] [--pairs 5]
    python benchmarks/watch_overhead.py memory [--steps 1000000]

`blocks`: one process, hooks on and off in ABBA order in blocks of steps. A block's figure is the
processor time of the training thread a step (wall time on a machine that does nothing else:
`--wall`); the median of the pairs counts, with the interval of its order statistics.
`launches`: the script as it is, under watch, and under the rival, in turns; the median steps, less
those of the plain launch of the same turn, are compared. A rival's name may have options of it:
`--rival traceml "traceml --disable-traceml"` also tells what the rival's torchrun costs alone.
`memory`: the resident memory of very short steps, plain and under watch, and the log's size.

Both have two columns: of the whole step, and of the step without the matrix products that fill it.
The second has less noise; what slows the products themselves (as threads beside them) is not in it.
All lengths of step are trained by one process after another, so that a launch pays its start once.

`--python` names an interpreter that has torch and the loop's framework, and the rival beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from scipy.stats import binom

from torchdoctor.probe import step_log

PROBE = Path(step_log.__file__).parent
WARM = 200  # steps of a training that do not count, at most
EACH = r"""
import time
import torch
torch.set_num_threads(1)
matrix, each_s = torch.randn(96, 96), []
for _ in range(9):
    began = time.thread_time()
    for _ in range(500):
        matrix @ matrix
    each_s.append((time.thread_time() - began) / 500)
print(sorted(each_s)[4])
"""
SCRIPT = r"""
import json, os, sys, time
import torch
loop, wall, parts, folder = sys.argv[1], int(sys.argv[2]), *sys.argv[3:5]
torch.set_num_threads(1)
attached = sys.modules.get("_torchdoctor_probe_attach")
watch = attached and attached._watch
clock = time.perf_counter if wall else time.thread_time
matrix = torch.randn(96, 96)
class Data(torch.utils.data.Dataset):
    def __init__(self, steps):
        self.steps = steps
    def __len__(self):
        return (self.steps + 2) * 4
    def __getitem__(self, index):
        return torch.ones(16)
def collate(samples):
    number = len(marks) - warm
    if block and watch:
        watch.rests._due_ns = 1 << 62
        watch.on = number < 0 or number // block % 4 in (1, 2)
    marks.append((clock(), worked_s))
    batch = torch.stack(samples)
    return {"x": batch} if loop == "trainer" else batch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        layers = torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)
        self.net = torch.nn.Sequential(*layers)
    def forward(self, x):
        global worked_s
        began_s = clock()
        for _ in range(repeats):
            matrix @ matrix
        worked_s += clock() - began_s
        loss = self.net(x).square().mean()
        return {"loss": loss} if loop == "trainer" else loss
def train(model, data):
    def loader():
        return torch.utils.data.DataLoader(data, batch_size=4, collate_fn=collate)
    if loop == "plain":
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for x in loader():
            optimizer.zero_grad()
            model(x).backward()
            optimizer.step()
    elif loop == "lightning":
        import lightning, logging
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        class Module(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.model = model
            def training_step(self, batch, number):
                return self.model(batch)
            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=1e-3)
        lightning.Trainer(max_steps=data.steps, max_epochs=1, logger=False, accelerator="cpu",
                          enable_checkpointing=False, enable_progress_bar=False,
                          enable_model_summary=False).fit(Module(), loader())
    else:
        import transformers
        options = transformers.TrainingArguments(
            output_dir=folder, max_steps=data.steps, per_device_train_batch_size=4, report_to=[],
            save_strategy="no", logging_strategy="no", disable_tqdm=True, use_cpu=True,
            remove_unused_columns=False, dataloader_pin_memory=False)
        transformers.Trainer(model, options, data_collator=collate, train_dataset=data).train()
result = []
for repeats, steps, warm, block in json.loads(parts):
    marks, worked_s = [], 0.0
    train(Model(), Data(steps))
    steps_s = [(b - a, b - a - w + v) for (a, v), (b, w) in zip(marks[warm:], marks[warm + 1:])]
    result.append(steps_s)
open(os.path.join(folder, "result.json"), "w").write(json.dumps(result))
"""
# The rival sees the steps of a plain loop only by these lines, which its documentation asks for.
RIVAL_LINES = (
    ("import torch\n", "import torch, traceml_ai\ntraceml_ai.init(mode='auto')\n"),
    ("in loader():\n", "in loader():\n          with traceml_ai.trace_step(model):\n"),
)
SHORT_STEPS = r"""
import json, os, sys
import torch
torch.set_num_threads(1)
steps, model = int(sys.argv[1]), torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
def resident(name):
    return int(open("/proc/self/status").read().partition(name + ":")[2].split()[0]) / 1e3
result = {}
for step, x in enumerate(torch.utils.data.DataLoader(range(steps)), 1):
    optimizer.zero_grad()
    model(x.float().expand(16)).square().sum().backward()
    optimizer.step()
    if step in (1000, 10_000, 100_000, 300_000, steps):
        result[f"{step:,}"] = resident("VmRSS")
result["peak"] = resident("VmHWM")
open(os.path.join(sys.argv[2], "result.json"), "w").write(json.dumps(result))
"""


def launch(
    python: str, words: list[str], folder: Path, how: str = "probe", text: str = SCRIPT
) -> Any:
    """Return what the script wrote; `how`: "plain", "probe" (in it alone), "watch", or a rival."""
    script = folder / "loop.py"
    is_rival = how not in ("plain", "probe", "watch")
    if is_rival and words[0] == "plain":
        for old, new in RIVAL_LINES:
            text = text.replace(old, new)
    script.write_text(text)
    arguments = [*words, str(folder)]
    environment = dict(os.environ)
    command = [python, str(script), *arguments]
    if how == "probe":
        (folder / "watch").mkdir()
        (folder / "plan.json").write_text(
            json.dumps({"watch": {}, "channel": str(folder / "watch")})
        )
        environment |= {"PYTHONPATH": str(PROBE), "TORCHDOCTOR_PLAN": str(folder / "plan.json")}
    elif how == "watch":
        run = str(folder / "run")
        command = [sys.executable, "-m", "torchdoctor", "watch", "--output", run, "--", *command]
    elif is_rival:
        rival, *flags = how.split()
        with socket.socket() as free:  # its own port may be held by one that was left behind
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        command = [str(Path(python).parent / rival), "run", *flags, "--logs-dir", str(folder)]
        command += ["--aggregator-port", port, str(script), "--args", *arguments]
    output, result = folder / "output.txt", folder / "result.json"
    for _ in range(3 if is_rival else 1):  # what it starts beside the program may come too late
        with output.open("wb") as file:
            done = subprocess.run(command, env=environment, cwd=folder, stdout=file, stderr=file)
        if result.is_file():
            break
    else:
        raise SystemExit(f"{how}: exit code {done.returncode}\n{output.read_text()[-2000:]}")
    return json.loads(result.read_text())


def median(values: list[float]) -> str:
    """Return the median with the 95 % interval of its order statistics."""
    values, rank = sorted(values), int(binom.ppf(0.025, len(values), 0.5))
    low, high = values[max(rank - 1, 0)], values[min(len(values) - rank, len(values) - 1)]
    return f"{statistics.median(values):.1f} ({low:.1f} to {high:.1f})"


def repeats_of(options: argparse.Namespace) -> list[int]:
    """Return how many matrix products fill a step of each length: the same in all launches."""
    done = subprocess.run([options.python, "-c", EACH], capture_output=True, text=True, check=True)
    return [int(step_ms / 1e3 / float(done.stdout)) for step_ms in options.step_ms]


def blocks(options: argparse.Namespace) -> None:
    """Print what the hooks cost, by blocks of one process."""
    print("| loop | step | hooks cost us a step | outside its products | of the step |")
    print("| --- | --- | --- | --- | --- |")
    sizes = [max(20, min(100, int(250 / step_ms))) for step_ms in options.step_ms]
    warms = [min(WARM, 4 * size) for size in sizes]
    parts = [
        (repeats, warm + size * 4 * options.rounds, warm, size)
        for repeats, size, warm in zip(repeats_of(options), sizes, warms, strict=True)
    ]
    for loop in options.loop:
        words = [loop, str(int(options.wall)), json.dumps(parts)]
        with tempfile.TemporaryDirectory() as folder:
            trained = launch(options.python, words, Path(folder))
        for steps_s, size in zip(trained, sizes, strict=True):
            more: list[list[float]] = [[], []]
            off_s = []
            for column, differences in enumerate(more):
                taken = []
                for at in range(0, len(steps_s) - size + 1, size):
                    # The first steps of a block find the caches as the other side left them.
                    ordered = sorted(step[column] for step in steps_s[at + 3 : at + size])
                    taken.append(statistics.mean(ordered[: -max(1, size // 10)]))
                for at in range(0, len(taken) - 3, 4):  # off on on off
                    off, on = taken[at] + taken[at + 3], taken[at + 1] + taken[at + 2]
                    differences.append((on - off) / 2 * 1e6)
                    off_s += [off / 2] if not column else []
            step_s = statistics.median(off_s)
            share = statistics.median(more[1]) / step_s / 1e4
            columns = " | ".join(map(median, more))
            print(f"| {loop} | {step_s * 1e3:.2f} ms | {columns} | {share:.2f} % |", flush=True)


def launches(options: argparse.Namespace) -> None:
    """Print launches in turns: plain, watch, the rival."""
    kinds, mean = ["plain", "watch", *options.rival], getattr(statistics, options.figure)
    print("| loop | step | more than without, us a step | outside its products |")
    print("| --- | --- | --- | --- |")
    counts = [max(options.fewest, int(options.seconds / ms * 1e3)) for ms in options.step_ms]
    warm = [min(WARM, count // 3) for count in counts]
    parts = [*zip(repeats_of(options), counts, warm, [0] * len(counts), strict=True)]
    for loop in options.loop:
        words = [loop, str(int(options.wall)), json.dumps(parts)]
        figures: dict[str, list[list[list[float]]]] = {kind: [] for kind in kinds}
        for turn in range(options.pairs):
            for kind in kinds if turn % 2 else kinds[::-1]:
                with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                    taken = launch(options.python, words, Path(folder), kind)
                    time.sleep(2)  # what stays beside the program ends
                figures[kind].append([[*map(mean, zip(*part, strict=True))] for part in taken])
        for part in range(len(counts)):
            plain = [turn[part] for turn in figures["plain"]]
            length = f"{statistics.median(whole for whole, _ in plain) * 1e3:.2f} ms"
            for kind in kinds[1:]:
                pairs = [*zip(figures[kind], plain, strict=True)]
                more = [[(a[part][at] - b[at]) * 1e6 for a, b in pairs] for at in (0, 1)]
                print(
                    f"| {loop}, {kind} | {length} | {' | '.join(map(median, more))} |", flush=True
                )


def memory(options: argparse.Namespace) -> None:
    """Print the resident memory after so many steps, and what the log takes of the disk."""
    used = {}
    for kind in ("plain", "watch"):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
            folder, words = Path(name), [str(options.steps)]
            used[kind] = launch(options.python, words, folder, kind, SHORT_STEPS)
            logs = [path.stat().st_size for path in (folder / "run").rglob("*") if path.is_file()]
            time.sleep(5)  # what stays beside the program ends
    print("| MB after steps | plain | watch | more |\n| --- | --- | --- | --- |")
    for point in used["plain"]:
        plain, watched = (float(str(used[kind][point])) for kind in ("plain", "watch"))
        print(f"| {point} | {plain:.1f} | {watched:.1f} | {watched - plain:+.1f} |")
    print(f"The log has {sum(logs) / options.steps:.1f} bytes a step.")


def main() -> None:
    """Measure as asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("kind", choices=["blocks", "launches", "memory"])
    parser.add_argument("--loop", nargs="+", default=["plain"])
    parser.add_argument("--step-ms", nargs="+", type=float, default=[1, 5, 50])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--fewest", type=int, default=300, help="steps of a launch")
    parser.add_argument("--figure", default="median", choices=["median", "mean"])
    parser.add_argument("--rival", nargs="+", default=[])
    parser.add_argument("--wall", action="store_true")
    parser.add_argument("--python", default=sys.executable)
    options = parser.parse_args()
    {"blocks": blocks, "launches": launches, "memory": memory}[options.kind](options)


if __name__ == "__main__":
    main()
