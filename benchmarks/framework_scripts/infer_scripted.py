"""A scripted network, saved and loaded as a service has it."""

import tempfile
from pathlib import Path

import torch
from framework_data import counted, small_model

torch.manual_seed(0)
path = Path(tempfile.mkdtemp()) / "net.pt"
torch.jit.script(small_model().eval()).save(path)
net = torch.jit.load(path)
with torch.no_grad():
    for _ in range(200):
        net(torch.randn(8, 3, 32, 32)).argmax(1)
counted("torch", 200)
