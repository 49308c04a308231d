"""What `torchdoctor watch` costs a step: within one run, and launch beside launch with a rival.

    python benchmarks/watch_overhead.py blocks [--step-ms 1 5 50] [--loop plain lightning trainer]
    python benchmarks/watch_overhead.py launches [--rival traceml] [--pairs 5]
    python benchmarks/watch_overhead.py memory [--steps 1000000]

`blocks`: one process, hooks on and off in ABBA order in blocks of steps. A block's figure is the
processor time of the training thread a step (wall time on a machine that does nothing else:
`--wall`); the median of the pairs counts, with the interval of its order statistics.
`launches`: the script as it is, under watch, and under the rival, in turns; each prints its own
median step, and the ratios to the plain launch of the same turn are compared.
`memory`: the resident memory of very short steps, plain and under watch, and the log's size.

`--python` names an interpreter that has torch and the loop's framework.
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

from scipy.stats import binom

from torchdoctor.probe import step_log

PROBE = Path(step_log.__file__).parent
SCRIPT = r"""
import json, os, statistics, sys, time
import torch
loop, step_ms, steps, block, wall = sys.argv[1], float(sys.argv[2]), *map(int, sys.argv[3:6])
torch.set_num_threads(1)
attached = sys.modules.get("_torchdoctor_probe_attach")
watch = attached and attached._watch
clock = time.perf_counter if wall else time.thread_time
matrix = torch.randn(96, 96)
def work(count):
    for _ in range(count):
        matrix @ matrix
began = time.thread_time(); work(4000); each_s = (time.thread_time() - began) / 4000
repeats = int(step_ms / 1e3 / each_s)
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return (steps + 2) * 4
    def __getitem__(self, index):
        return torch.ones(16)
marks = []
def collate(samples):
    number = len(marks)
    if block and watch and number >= 200:
        watch.rests._due_ns = 1 << 62
        watch.on = (number - 200) // block % 4 in (1, 2)
    marks.append(clock())
    batch = torch.stack(samples)
    return {"x": batch} if loop == "trainer" else batch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        layers = torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)
        self.net = torch.nn.Sequential(*layers)
    def forward(self, x):
        work(repeats)
        loss = self.net(x).square().mean()
        return {"loss": loss} if loop == "trainer" else loss
model = Model()
def loader():
    return torch.utils.data.DataLoader(Data(), batch_size=4, collate_fn=collate)
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
    lightning.Trainer(max_steps=steps, max_epochs=1, logger=False, accelerator="cpu",
                      enable_checkpointing=False, enable_progress_bar=False,
                      enable_model_summary=False).fit(Module(), loader())
else:
    import transformers
    options = transformers.TrainingArguments(
        output_dir=sys.argv[6], max_steps=steps, per_device_train_batch_size=4, report_to=[],
        save_strategy="no", logging_strategy="no", disable_tqdm=True, use_cpu=True,
        remove_unused_columns=False, dataloader_pin_memory=False)
    transformers.Trainer(model, options, data_collator=collate, train_dataset=Data()).train()
took = [b - a for a, b in zip(marks[200:], marks[201:])]
result = {"median_s": statistics.median(took), "mean_s": statistics.mean(took), "steps": len(took)}
if block:
    blocks = [took[at : at + block] for at in range(0, len(took) - block + 1, block)]
    # The first steps of a block find the caches as the other side left them.
    result["blocks"] = [statistics.mean(sorted(b[3:])[: -max(1, block // 10)]) for b in blocks]
open(os.path.join(sys.argv[6], "result.json"), "w").write(json.dumps(result))
"""
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
) -> dict[str, float | list[float]]:
    """Run the script once; `how`: "plain", "probe" (in it alone), "watch", or the rival's."""
    script = folder / "loop.py"
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
    elif how != "plain":
        rival = str(Path(python).parent / how)
        with socket.socket() as free:  # its own port may be held by one that was left behind
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        command = [rival, "run", "--logs-dir", str(folder), "--aggregator-port", port]
        command += [str(script), "--args", *arguments]
    output = folder / "output.txt"
    with output.open("wb") as file:
        code = subprocess.run(command, env=environment, cwd=folder, stdout=file, stderr=file)
    result = folder / "result.json"
    if not result.is_file():
        raise SystemExit(f"{how}: exit code {code.returncode}\n{output.read_text()[-2000:]}")
    return dict(json.loads(result.read_text()))


def median(values: list[float]) -> str:
    """Return the median with the 95 % interval of its order statistics."""
    values, rank = sorted(values), int(binom.ppf(0.025, len(values), 0.5))
    low, high = values[max(rank - 1, 0)], values[min(len(values) - rank, len(values) - 1)]
    return f"{statistics.median(values):.1f} ({low:.1f} to {high:.1f})"


def blocks(options: argparse.Namespace) -> None:
    """Print what the hooks cost, by blocks of one process."""
    print("| loop | step | hooks cost us a step | of the step |\n| --- | --- | --- | --- |")
    for loop in options.loop:
        for step_ms in options.step_ms:
            size = max(20, min(100, int(250 / step_ms)))
            steps = 200 + size * 4 * options.rounds
            words = [loop, str(step_ms), str(steps), str(size), str(int(options.wall))]
            with tempfile.TemporaryDirectory() as folder:
                taken = launch(options.python, words, Path(folder))["blocks"]
            assert isinstance(taken, list)
            differences, off_s = [], []
            for at in range(0, len(taken) - 3, 4):  # off on on off
                off, on = taken[at] + taken[at + 3], taken[at + 1] + taken[at + 2]
                differences.append((on - off) / 2 * 1e6)
                off_s.append(off / 2)
            step_s = statistics.median(off_s)
            share = statistics.median(differences) / step_s / 1e4
            row = f"| {loop} | {step_s * 1e3:.2f} ms | {median(differences)} | {share:.2f} % |"
            print(row, flush=True)


def launches(options: argparse.Namespace) -> None:
    """Print launches in turns: plain, watch, the rival."""
    kinds = ["plain", "watch", *([options.rival] if options.rival else [])]
    print("| loop | step | more than without, us a step | \n| --- | --- | --- |")
    for loop in options.loop:
        for step_ms in options.step_ms:
            steps = max(300, int(options.seconds / step_ms * 1e3))
            words = [loop, str(step_ms), str(steps), "0", str(int(options.wall))]
            more: dict[str, list[float]] = {kind: [] for kind in kinds}
            for turn in range(options.pairs):
                steps_s = {}
                for kind in kinds if turn % 2 else kinds[::-1]:
                    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                        result = launch(options.python, words, Path(folder), kind)
                        steps_s[kind] = float(str(result[options.figure]))
                        time.sleep(2)  # what stays beside the program ends
                for kind in kinds:
                    more[kind].append((steps_s[kind] - steps_s["plain"]) * 1e6)
            for kind in kinds[1:]:
                print(f"| {loop}, {kind} | {step_ms:g} ms | {median(more[kind])} |", flush=True)


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
    parser.add_argument("--figure", default="median_s", choices=["median_s", "mean_s"])
    parser.add_argument("--rival")
    parser.add_argument("--wall", action="store_true")
    parser.add_argument("--python", default=sys.executable)
    options = parser.parse_args()
    {"blocks": blocks, "launches": launches, "memory": memory}[options.kind](options)


if __name__ == "__main__":
    main()
