"""Where do the seconds of a pair go? Interpreter, imports, data and model, warm-up, blocks.

    python benchmarks/pair_seconds.py FOLDER [--python PYTHON] [--only mnist ...] [--pairs 2]

FOLDER holds clones of public repositories (pytorch/examples, karpathy/nanoGPT, karpathy/minGPT,
karpathy/llama2.c, yunjey/pytorch-tutorial); small made-up data are written into them. PYTHON has
torch, torchvision, lightning, transformers, timm, accelerate, gymnasium and sentencepiece. A script
that is not there, or does not run, is named and left out. Each is observed once; then it is
measured beside itself, as a run measures a fix.

Seconds are those that the pair takes on the clock. Both launches start at once, on the same cores;
so what an interpreter and the script's leading imports take was measured alone, before, and "data
and model" is the rest until the later of the two comes to its first step, in pairs that start cold.
"forked" is all of that in pairs of forked launches, to which the other columns belong: "settling"
is what is discarded before each block, and what handing over takes. Launches of programs that
cannot run side by side follow each other, cold: their seconds are added.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from torchdoctor.launch.launch_spec import UNTOUCHED
from torchdoctor.launch.sandbox import Sandbox
from torchdoctor.launch.workload import workload_of
from torchdoctor.observe.events import read_channel
from torchdoctor.observe.window import choose_window
from torchdoctor.pairs.engine import Engine
from torchdoctor.pairs.measurement import ProgramLaunches, turns_of_trials
from torchdoctor.pairs.record import Recorder
from torchdoctor.probe import step_log
from torchdoctor.words import Pair, Workload
from torchdoctor.words.errors import TorchdoctorError

BUDGET_S = 150.0
COLD = ("interpreter", "imports", "data and model")
COLUMNS = ("forked", "warm-up", "blocks", "settling", "end")
OF_PACKAGES = {
    "lightning": """
import lightning.pytorch as pl
from lightning.pytorch.demos.boring_classes import BoringDataModule, BoringModel
pl.Trainer(max_epochs=10**6, accelerator="cpu", logger=False, enable_checkpointing=False,
           enable_progress_bar=False).fit(BoringModel(), BoringDataModule())
""",
    "transformers": """
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
class Texts(torch.utils.data.Dataset):
    def __len__(self): return 10**6
    def __getitem__(self, i): return {"input_ids": torch.arange(64) + i % 9, "labels": i % 2}
config = BertConfig(
    hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=99)
arguments = TrainingArguments("out", use_cpu=True, report_to=[], disable_tqdm=True)
Trainer(BertForSequenceClassification(config), arguments, train_dataset=Texts()).train()
""",
    "timm": """
import timm, torch
from timm.optim import create_optimizer_v2
model = timm.create_model("resnet10t", num_classes=10)
optimizer = create_optimizer_v2(model, opt="sgd", lr=0.01)
images = torch.utils.data.TensorDataset(torch.randn(512, 3, 96, 96), torch.randint(10, (512,)))
while True:
    for x, y in torch.utils.data.DataLoader(images, batch_size=16, shuffle=True):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
""",
    "accelerate": """
import torch
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 2))
optimizer = torch.optim.AdamW(model.parameters())
rows = torch.utils.data.TensorDataset(torch.randn(8192, 64), torch.randint(2, (8192,)))
model, optimizer, loader = accelerator.prepare(
    model, optimizer, torch.utils.data.DataLoader(rows, batch_size=64, shuffle=True))
while True:
    for x, y in loader:
        accelerator.backward(torch.nn.functional.cross_entropy(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
""",
}
SCRIPTS = {  # folder below the clones, command
    "mnist": ("examples/mnist", "main.py --epochs 99 --no-accel"),
    "dcgan": (
        "examples/dcgan",
        "main.py --dataset fake --batchSize 16 --ngf 16 --ndf 16 --niter 9",
    ),
    "word_language_model": ("examples/word_language_model", "main.py --epochs 99"),
    "nanoGPT": (
        "nanoGPT",
        "train.py config/train_shakespeare_char.py --device=cpu --compile=False --eval_iters=2"
        " --block_size=64 --batch_size=12 --n_layer=4 --n_head=4 --n_embd=128",
    ),
    "minGPT": ("minGPT/projects/adder", "adder.py"),
    "minGPT (letters)": ("minGPT/projects/chargpt", "chargpt.py --model.model_type=gpt-nano"),
    "REINFORCE": ("examples/reinforcement_learning", "reinforce.py"),
    "RNN tutorial": ("pytorch-tutorial/tutorials/02-intermediate/language_model", "main.py"),
    "llama2.c": (
        "llama2.c",
        "train.py --device=cpu --compile=False --dtype=float32 --batch_size=8 --dim=64 --n_layers=3"
        " --n_heads=4 --n_kv_heads=4 --max_seq_len=64 --eval_iters=2 --vocab_source=custom"
        " --vocab_size=512",
    ),
    **{name: (f"of-packages/{name}", "train.py") for name in OF_PACKAGES},
}


def make_data(clones: Path) -> None:
    """Write small made-up data, and the scripts of packages, where the scripts look for them."""
    chance = np.random.default_rng(0)
    raw = clones / "examples/data/MNIST/raw"
    raw.mkdir(parents=True, exist_ok=True)
    for kind, count in (("train", 6000), ("t10k", 1000)):
        header = np.array([2051, count, 28, 28], dtype=">i4").tobytes()
        pixels = chance.integers(0, 256, count * 784, dtype=np.uint8).tobytes()
        (raw / f"{kind}-images-idx3-ubyte").write_bytes(header + pixels)
        header = np.array([2049, count], dtype=">i4").tobytes()
        labels = chance.integers(0, 10, count, dtype=np.uint8).tobytes()
        (raw / f"{kind}-labels-idx1-ubyte").write_bytes(header + labels)
    texts = clones / "examples/word_language_model/data/wikitext-2"
    texts.mkdir(parents=True, exist_ok=True)
    for kind in ("train", "valid", "test"):
        words = "\n".join(
            " ".join(f"w{x}" for x in row) for row in chance.integers(999, size=(2000, 20))
        )
        (texts / f"{kind}.txt").write_text(words + "\n")
    for name, path in (("minGPT (letters)", "input.txt"), ("RNN tutorial", "data/train.txt")):
        file = clones / SCRIPTS[name][0] / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{words}\nO God, O God!\n")  # minGPT's samples begin so
    tokens = {"nanoGPT/data/shakespeare_char": ("train.bin", "val.bin")}
    tokens["llama2.c/data/tok512"] = ("data00.bin", "data01.bin")
    for folder, names in tokens.items():
        (clones / folder).mkdir(parents=True, exist_ok=True)
        for name in names:
            chance.integers(0, 60, 100_000).astype(np.uint16).tofile(clones / folder / name)
    for name, source in OF_PACKAGES.items():
        (clones / f"of-packages/{name}").mkdir(parents=True, exist_ok=True)
        (clones / f"of-packages/{name}/train.py").write_text(source)


def leading_imports(script: Path) -> str:
    """Return the imports that the script begins with."""
    lines = []
    for statement in ast.parse(script.read_text()).body:
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            lines.append(ast.unparse(statement))
        elif not isinstance(statement, ast.Expr):
            break
    return "\n".join(lines)


def alone_s(python: str, source: str, folder: Path) -> float:
    """Return the seconds of an interpreter that runs this, the median of three."""
    took_s = []
    for _ in range(3):
        began_s = time.monotonic()
        subprocess.run([python, "-c", source], cwd=folder, check=True, capture_output=True)
        took_s.append(time.monotonic() - began_s)
    return statistics.median(took_s)


def seconds_of(folder: Path, words: list[str], python: str, pairs: int) -> dict[str, float]:
    """Return the seconds of a pair of the script with itself, by what they go to.

    Raises:
        TorchdoctorError: it cannot be measured.
    """
    workload = workload_of(words, python=python, cwd=str(folder))
    interpreter_s = alone_s(python, "pass", folder)
    imports_s = alone_s(python, leading_imports(folder / words[0]), folder) - interpreter_s
    cold = _pair_s(workload, pairs, forks=False)
    forked = _pair_s(workload, pairs, forks=True)
    rest_s = cold[0] - interpreter_s - imports_s
    return dict(zip((*COLD, *COLUMNS), (interpreter_s, imports_s, rest_s, *forked), strict=True))


def _pair_s(workload: Workload, pairs: int, forks: bool) -> list[float]:
    """Return seconds of a pair until its first steps, and as `COLUMNS`: the medians of pairs."""
    rows = []
    with tempfile.TemporaryDirectory() as name, Sandbox.choose("auto", Path(name), workload) as box:
        recorder = Recorder(workload, Path(name), box, 0, None, 120.0, forks)
        observed = recorder.observe(None, 0.06 * BUDGET_S, 0.35 * BUDGET_S)
        window = choose_window(observed.steps, BUDGET_S)
        turns = turns_of_trials(observed, window, left_s=BUDGET_S)
        beside = None if isinstance(turns, str) else turns
        launches = ProgramLaunches.of_trials(recorder, observed, window, beside)
        engine = Engine(launches, random.Random(0))
        recorder.image()  # once for all pairs
        for number in range(pairs):
            began_s = time.monotonic()
            pair = engine.pair(replace(UNTOUCHED, name=f"same-{number}"))
            ended_s = time.monotonic()
            if not isinstance(pair, Pair):
                raise TorchdoctorError(f"no pair: {pair}")
            channels = sorted(Path(name).glob("launches/*/channel"))[-2:]
            firsts, begins, ends = zip(*(_marks_s(x) for x in channels), strict=True)
            measured_s = sum(block.window_s for both in pair.blocks for block in both)
            if beside:
                start_s, warm_s = max(firsts) - began_s, min(begins) - max(firsts)
                blocks_s, end_s = max(ends) - min(begins), ended_s - max(ends)
            else:  # one after the other: the seconds of both add up, but for the end of the first
                start_s = firsts[0] - began_s + firsts[1] - ends[0]
                warm_s = sum(begins) - sum(firsts)
                blocks_s, end_s = sum(ends) - sum(begins), ended_s - ends[1]
            rows.append([start_s, warm_s, measured_s, blocks_s - measured_s, end_s])
        recorder.close()
    return np.median(np.array(rows), axis=0).tolist()


def _marks_s(channel: Path) -> tuple[float, float, float]:
    """Return when a launch came to its first step, and when its measurement began and ended."""
    log = max(read_channel(channel)[0].values(), key=len)
    begins = log.at(step_log.BLOCK_BEGIN, step_log.WINDOW_BEGIN)
    steps = log.at(step_log.BOUNDARY)
    return tuple(float(log.t_ns[row]) / 1e9 for row in (steps[0], begins[0], steps[-1]))


def main() -> None:
    """Measure and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clones", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--only", nargs="+", default=list(SCRIPTS), choices=list(SCRIPTS))
    parser.add_argument("--pairs", type=int, default=2)
    wanted = parser.parse_args()
    clones, python = wanted.clones.resolve(), shutil.which(wanted.python) or wanted.python
    os.environ |= {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(clones / "minGPT")}
    make_data(clones)
    columns = (*COLD, *COLUMNS)
    print(f"| script | pair | {' | '.join(columns)} |\n|{'---|' * (len(columns) + 2)}")
    for name in wanted.only:
        folder, command = SCRIPTS[name]
        if not (clones / folder / command.split()[0]).is_file():
            print(f"| {name} | not there |", flush=True)
            continue
        try:
            seconds = seconds_of(clones / folder, command.split(), python, wanted.pairs)
        except (TorchdoctorError, subprocess.CalledProcessError) as error:
            print(f"| {name} | {' '.join(str(error).split())[:200]} |", flush=True)
            continue
        figures = " | ".join(f"{seconds[column]:.1f}" for column in columns)
        pair_s = sum(seconds[column] for column in COLUMNS)
        print(f"| {name} | {pair_s:.1f} s | {figures} |", flush=True)


if __name__ == "__main__":
    main()
