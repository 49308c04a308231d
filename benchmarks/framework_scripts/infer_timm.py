"""timm's validate.py, unedited, with a small model and made-up images; its path is the argument."""

import runpy
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import torchvision_on_cpu  # noqa: F401 - before timm, which imports torchvision
from framework_data import counted
from PIL import Image
from timm import create_model

IMAGES, BATCH = 120, 4

folder = Path(tempfile.mkdtemp())
random = np.random.default_rng(0)
for number in range(IMAGES):
    file = folder / "images" / "ab"[number % 2] / f"{number}.jpg"
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(random.integers(0, 255, (48, 48, 3), dtype=np.uint8)).save(file)
torch.manual_seed(0)
torch.save(create_model("resnet10t", num_classes=2).state_dict(), folder / "model.pth")
sys.argv = [
    sys.argv[1], "--data-dir", f"{folder / 'images'}", "--checkpoint", f"{folder / 'model.pth'}",
    *f"--model resnet10t --num-classes 2 --img-size 32 --device cpu -b {BATCH} -j 1".split(),
]  # fmt: skip
runpy.run_path(sys.argv[0], run_name="__main__")
counted("timm", IMAGES // BATCH)
