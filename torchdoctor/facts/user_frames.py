"""Which frames of Python are the user's own, of neither Python nor a library of everybody."""

from __future__ import annotations

import re
import sys

FRAME = re.compile(r"(?P<file>.+\.pyx?)\((?P<line>\d+)\): (?P<function>.+)")
_LIBRARIES = frozenset(
    (
        *("torch", "torchvision", "torchaudio", "functorch", "triton", "torchmetrics"),
        *("numpy", "scipy", "pandas", "PIL", "cv2", "tqdm", "einops", "packaging", "IPython"),
        *("transformers", "accelerate", "tokenizers", "datasets", "safetensors", "ignite"),
        *("huggingface_hub", "lightning", "lightning_fabric", "pytorch_lightning", "timm"),
    )
)


def is_users(name: str) -> bool:
    """Whether a frame ("train.py(12): main") is of neither Python nor a well-known library."""
    match = FRAME.fullmatch(name)
    if match is None or name.startswith("<"):
        return False
    path = match["file"].replace("\\", "/")
    if "site-packages/" in path or "dist-packages/" in path or "/lib/python3" in path:
        return False
    first = path.partition("/")[0].removesuffix(".py")
    return first not in _LIBRARIES and first not in sys.stdlib_module_names
