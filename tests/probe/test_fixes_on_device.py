"""The examples of fixes that need a GPU, without the fix and with it, on the simulated one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from probed import run_probed
from simulated_gpu import devices

from torchdoctor.advice import catalogue

# In one process, which starts a server of programs for each kind of device.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("simulated-gpu")]
# remove-sync's keeps a real GPU busy with products that the simulated one would have to compute.
FIXES = ["cudnn-benchmark", "pin-memory", "tensor-on-device", "tf32"]


@pytest.mark.parametrize("ident", FIXES)
def test_the_example_of_a_fix_does_what_it_says(ident: str, tmp_path: Path) -> None:
    fix = catalogue.fixes()[ident]
    assert fix.example is not None
    example = fix.example
    # In the first line: settings name lines.
    (tmp_path / "example.py").write_text("import simulated_gpu.attach; " + example.program)
    options: Any = {"env": devices.variables(), "forked": True, "after": "continue"}
    plan = {"id": ident, "file": fix.file, "settings": example.settings}
    for fixes, shown in (([], example.without), ([plan], example.with_fix)):
        folder = tmp_path / str(len(fixes))
        folder.mkdir()
        ended = run_probed(["example.py"], tmp_path, folder, fixes=fixes, **options)
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout.strip() == shown
        assert ended.said() == []
    assert [row["state"] for row in ended.main["fixes"]] == ["applied"]
