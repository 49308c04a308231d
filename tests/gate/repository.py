"""A repository with a program whose speed a setting decides, and what git and disk hold of it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from light_torch import LIGHT

TRAIN = f"""
import sys, time, torch
{LIGHT}from settings import PAUSE_S
rows = open("data.txt").read().split()  # ignored by git
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
for step in range(100000):
    time.sleep(PAUSE_S)
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()  # updated by hand: making an optimizer imports for a second
    for parameter in model.parameters():
        parameter.data -= 0.01 * parameter.grad
        parameter.grad = None
"""


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=me", "-c", "user.email=me@here"]
    return subprocess.run(
        ["git", *identity, *arguments],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},  # looking must not refresh the index
    ).stdout


def state(folder: Path) -> tuple[str, str, dict[str, bytes]]:
    root = folder.parent
    files = {
        str(p.relative_to(root)): p.read_bytes()
        for p in root.rglob("*")
        if p.is_file() and "torchdoctor-runs" not in p.parts and "__pycache__" not in p.parts
    }
    return git(root, "status", "--porcelain"), git(root, "worktree", "list"), files
