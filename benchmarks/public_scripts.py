"""Public training scripts that benchmarks measure, with small made-up data for each.

They are started from a folder of clones (pytorch/examples, karpathy/nanoGPT, karpathy/minGPT,
karpathy/llama2.c, yunjey/pytorch-tutorial), unedited, by an interpreter that has torch,
torchvision, lightning, transformers, timm, accelerate, gymnasium and sentencepiece.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np

from torchdoctor.launch.workload import workload_of
from torchdoctor.schema import Workload

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


def _make_data(clones: Path) -> None:
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


def public_workloads(clones: Path, python: str) -> dict[str, Workload]:
    """Return the scripts that are there, by name, and make what they read; sets the environment."""
    clones, found = clones.resolve(), {}
    os.environ |= {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(clones / "minGPT")}
    _make_data(clones)
    for name, (folder, command) in SCRIPTS.items():
        words = command.split()
        if (clones / folder / words[0]).is_file():
            interpreter = shutil.which(python) or python
            found[name] = workload_of(words, python=interpreter, cwd=str(clones / folder))
    return found
