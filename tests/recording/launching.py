"""What the tests of launches share: a folder with a user's files, and one launch in it."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

from torchdoctor.launch.launch import LaunchResult, Program, launch
from torchdoctor.launch.launch_spec import LaunchSpec
from torchdoctor.launch.sandbox import Sandbox
from torchdoctor.schema import Workload


def content_of(folder: Path) -> dict[str, tuple[str, int, int, str]]:
    """Kind, mode, time of change and content of everything below a folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = ""
        if path.is_symlink():
            content = str(path.readlink())
        elif path.is_file():
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        kind = "folder" if path.is_dir() else "file"
        # The time of a folder's own change is left out: reading through a layer does not touch
        # it, but the bytecode cache of this interpreter may.
        stamp = 0 if path.is_dir() else status.st_mtime_ns
        found[str(path.relative_to(folder))] = (kind, status.st_mode, stamp, content)
    return found


def launch_script(
    folder: Path, source: str, sandbox: Sandbox, *args: str, **options: Any
) -> LaunchResult:
    """Launch a Python script with that source, in `folder`, with its launch folder beside it."""
    script = folder / "train.py"
    if not script.exists() or script.read_text() != source:
        script.write_text(source)
    workload = Workload(
        command=[sys.executable, "train.py", *args], cwd=str(folder), script=str(script)
    )
    options.setdefault("timeout_s", 60.0)
    common = {x: options.pop(x) for x in ("stdin_file", "compile_cache") if x in options}
    changed = {x: options.pop(x) for x in ("plan", "contents", "variables") if x in options}
    program = Program(workload=workload, sandbox=sandbox, **common)
    spec = LaunchSpec(name="test", **changed)
    return launch(program, spec, options.pop("folder", folder.parent / "launch"), **options)
