"""The user's program cannot tell that the probe is there."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest
from probed import run_plain, run_probed

SURROUNDINGS = """
import json, os, sys
data = [input("name? "), sys.stdin.read()]
sys.stderr.write("\\r 50%|#####     |\\r100%|##########|\\n")  # as tqdm draws
print(json.dumps({
    "argv": sys.argv, "path": sys.path, "name": __name__, "file": __file__, "cwd": os.getcwd(),
    "stdin": data, "main": sorted(vars(sys.modules["__main__"])),
    "excepthook": sys.excepthook is sys.__excepthook__,
}))
LAST
sys.exit(7)
"""
LOADED = """import torch
print(type(torch.__spec__.loader).__name__, type(torch.__loader__).__name__)"""


def write(folder: Path, name: str, code: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(code))
    return path


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("how", ["script", "module", "command"])
def test_surroundings_and_exit_code_are_those_of_plain_python(
    how: str, project: Path, tmp_path: Path
) -> None:
    # What is compared of torch is the same however the program is started.
    surroundings = SURROUNDINGS.replace("LAST", LOADED if how == "script" else "")
    write(project, "train.py", surroundings)
    write(project, "package/__init__.py", "")
    write(project, "package/__main__.py", surroundings)
    command = {
        "script": ["train.py", "--lr", "0.1"],
        "module": ["-m", "package", "--lr", "0.1"],
        "command": ["-c", surroundings.replace('"file": __file__, ', ""), "--lr", "0.1"],
    }[how]
    plain = run_plain(command, project, stdin="typed\nmore")
    probed = run_probed(command, project, tmp_path, stdin="typed\nmore")
    assert plain.returncode == 7
    assert probed.returncode == plain.returncode
    assert probed.stdout == plain.stdout
    assert probed.stderr == plain.stderr


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 raises what was caught")
def test_tracebacks_are_those_of_plain_python(project: Path, tmp_path: Path) -> None:
    """Logged by the program, and printed at its end: no frame of the probe is in them."""
    write(
        project,
        "train.py",
        """
        import torch, traceback
        class Data(torch.utils.data.Dataset):
            bad = False
            def __len__(self): return 6
            def __getitem__(self, i):
                if self.bad: raise KeyError(i)
                return torch.zeros(2)
        model = torch.nn.Sequential(torch.nn.Linear(2, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = torch.utils.data.DataLoader(Data(), batch_size=2)
        for x in loader:
            model(x).sum().backward()
            optimizer.step()
            try: model(torch.zeros(1, 3))
            except RuntimeError: traceback.print_exc()
            try: torch.nn.Linear(2, 2)(torch.zeros(1, 3))
            except RuntimeError: traceback.print_exc()
            try: (model(torch.zeros(1, 2)) * 2).backward()
            except RuntimeError: traceback.print_exc()
            try: raise RuntimeError('mine')
            except RuntimeError:
                Data.bad = True
                for x in loader: pass
        """,
    )
    plain = run_plain(["train.py"], project)
    probed = run_probed(["train.py"], project, tmp_path)
    assert plain.returncode == probed.returncode == 1
    assert plain.stderr.count("Traceback") == 5
    assert probed.stderr == plain.stderr


def test_failing_users_sitecustomize_says_the_same(project: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    write(own, "sitecustomize.py", "raise ValueError('mine')")
    write(project, "train.py", "print('goes on')")
    plain = run_plain(["train.py"], project, PYTHONPATH=str(own))
    probed = run_probed(["train.py"], project, tmp_path, env={"PYTHONPATH": str(own)})
    assert "mine" in plain.stderr
    assert (probed.returncode, probed.stdout, probed.stderr) == (0, plain.stdout, plain.stderr)


def test_program_without_torch_is_left_alone(project: Path, tmp_path: Path) -> None:
    write(project, "train.py", "import sitecustomize_missing_on_purpose")
    plain = run_plain(["train.py"], project)
    probed = run_probed(["train.py"], project, tmp_path)
    assert (probed.returncode, probed.stderr) == (plain.returncode, plain.stderr)


@pytest.mark.slow
def test_what_scripts_look_at_is_unchanged(project: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    write(own, "sitecustomize.py", "import builtins; builtins.mine = __name__")
    write(
        project,
        "train.py",
        """
        import inspect, sys
        learning_rate, steps, name = 0.1, 3, "run"
        import torch
        print(mine, sys.modules["sitecustomize"].__file__)
        # Configuration by globals: a name of ours would become an option of theirs.
        print(sorted(k for k, v in globals().items()
                     if not k.startswith("_") and isinstance(v, (int, float, bool, str))))
        print(inspect.signature(torch.optim.AdamW), inspect.isclass(torch.optim.AdamW))
        print(inspect.signature(torch.utils.data.DataLoader))
        print(inspect.signature(torch.autograd.backward), inspect.signature(torch.manual_seed))
        loader = torch.utils.data.DataLoader(range(10), batch_size=3)
        iterator = iter(loader)
        print(len(iterator), type(iterator).__name__, type(loader).__name__, len(loader))
        model = torch.nn.Linear(2, 2)
        model(torch.ones(1, 2)).sum().backward()
        print(type(model) is torch.nn.Linear, sorted(vars(model)))
        """,
    )
    plain = run_plain(["train.py"], project, PYTHONPATH=str(own))
    probed = run_probed(["train.py"], project, tmp_path, env={"PYTHONPATH": str(own)})
    assert plain.returncode == 0, plain.stderr
    assert "own" in plain.stdout
    assert (probed.returncode, probed.stdout, probed.stderr) == (0, plain.stdout, plain.stderr)
