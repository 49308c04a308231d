"""The fallback sandbox: a program's writes stay in the scratch folder and are read back."""

from __future__ import annotations

from pathlib import Path

import pytest
from probed import Probed, run_plain, run_probed
from test_fidelity import write

WRITERS = {
    "text": """
        with open("old.txt", "a") as f: f.write("more")
        print(open("old.txt").read())
        open(file="new.txt", mode="w").write("new"); print(open("new.txt").read())
    """,
    "update": """
        with open("old.txt", "r+") as f: f.seek(1); f.write("X")
        print(open("old.txt").read(), os.stat("old.txt").st_size)
    """,
    "exclusive": """
        try: open("old.txt", "x")
        except FileExistsError as e: print("exists", e.filename)
        try: open("missing/new.txt", "w")
        except FileNotFoundError as e: print("missing", e.filename)
        try: open("missing.txt")
        except FileNotFoundError as e: print(e)
    """,
    "descriptors": """
        f = os.open("raw", os.O_CREAT | os.O_WRONLY, 0o644); os.write(f, b"ab"); os.close(f)
        print(open("raw", "rb").read())
        try: os.open("none", os.O_WRONLY)
        except FileNotFoundError as e: print(e.filename)
    """,
    "removal": """
        os.remove("old.txt"); print(os.path.exists("old.txt"), sorted(os.listdir(".")))
        try: os.remove("old.txt")
        except FileNotFoundError as e: print(e)
        open("old.txt", "w").write("again"); print(open("old.txt").read())
    """,
    "folders": """
        os.makedirs("a/b"); open("a/b/c", "w").write("1"); print(sorted(os.listdir(".")))
        try: os.mkdir("folder")
        except FileExistsError as e: print(e)
        try: os.rmdir("folder")
        except OSError as e: print(e.errno == 39)
        print([(e.name, e.is_dir(), e.path) for e in sorted(os.scandir("a"), key=str)])
        print(sorted((r, sorted(d), sorted(f)) for r, d, f in os.walk(".")))
    """,
    "tree": """
        shutil.rmtree("folder"); print(os.path.exists("folder/inner.txt"))
        os.mkdir("folder"); print(os.listdir("folder"))
        shutil.copytree("folder", "copy"); print(sorted(os.listdir(".")))
    """,
    "rename": """
        os.replace("old.txt", "folder/moved.txt"); print(os.path.exists("old.txt"))
        os.rename("folder", "renamed"); print(os.path.isdir("folder"))
        print(sorted(os.listdir("renamed")))
        print(open("renamed/moved.txt").read(), open("renamed/inner.txt").read())
    """,
    "links": """
        os.symlink("old.txt", "soft"); print(open("soft").read(), os.readlink("soft"))
        os.link("old.txt", "hard"); open("hard", "a").write("!"); print(open("hard").read())
        os.truncate("old.txt", 2); os.chmod("old.txt", 0o600); os.utime("old.txt", (1, 1))
        print(oct(os.stat("old.txt").st_mode), os.stat("old.txt").st_mtime, open("old.txt").read())
    """,
    "pathlib": """
        p = pathlib.Path("sub"); p.mkdir(); (p / "x.txt").write_text("hi")
        print((p / "x.txt").read_text(), [q.name for q in p.iterdir()])
        print(sorted(map(str, p.rglob("*"))))
        pathlib.Path("old.txt").unlink(); print(pathlib.Path("old.txt").exists())
        try: p.mkdir()
        except FileExistsError as e: print(e)
    """,
    "working folder": """
        os.makedirs("deep/er"); os.chdir("deep/er"); print(os.getcwd() == START + "/deep/er")
        open("x", "w").write("1"); print(os.listdir("."), open("../../old.txt").read())
    """,
    "temporary": """
        import tempfile
        with tempfile.TemporaryDirectory() as d:
            open(os.path.join(d, "t"), "w").write("1"); print(os.listdir(d))
        print(os.path.exists(d))
        with tempfile.NamedTemporaryFile("w+") as f:
            f.write("2"); f.flush(); print(open(f.name).read())
    """,
    "sqlite": """
        import sqlite3
        for name, options in (("base.db", {}), (f"file:{START}/base.db?mode=rwc", {"uri": True})):
            with sqlite3.connect(name, **options) as c:
                c.execute("create table if not exists t (x)"); c.execute("insert into t values (1)")
                c.commit(); print(c.execute("select count(*) from t").fetchall())
    """,
    "child": """
        import subprocess, sys
        open("given.txt", "w").write("given")
        code = "print(open('given.txt').read()); open('made.txt', 'w').write('made')"
        print(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout)
        print(open("made.txt").read())
    """,
}
HEAD = "import os, pathlib, shutil\nSTART = os.getcwd()\n"


def snapshot(folder: Path) -> dict[str, tuple[bytes | None, int, int]]:
    found = {}
    for path in sorted(folder.rglob("*")):
        state = path.lstat()
        content = path.read_bytes() if path.is_file() else None
        found[str(path.relative_to(folder))] = (content, state.st_mode, state.st_mtime_ns)
    return found


def make_project(folder: Path, code: str) -> Path:
    write(folder, "folder/inner.txt", "inner")
    write(folder, "old.txt", "old")
    write(folder, "train.py", "")
    (folder / "train.py").write_text(HEAD + "\n".join(x[8:] for x in code.splitlines()))
    return folder


def run_redirected(project: Path, folder: Path, forked: bool = False) -> Probed:
    scratch = folder / "scratch"
    scratch.mkdir()
    before = snapshot(project)
    command, redirect = [str(project / "train.py")], {"scratch": str(scratch)}
    run = run_probed(command, project, folder, forked=forked, redirect=redirect)
    assert snapshot(project) == before, "a write reached the user's files"
    assert run.said() == []
    return run


@pytest.mark.parametrize("name", WRITERS)
def test_program_sees_its_writes_and_the_files_stay(name: str, tmp_path: Path) -> None:
    """The same program, run plainly on a copy, prints the same."""
    twin = make_project(tmp_path / "plain" / "project", WRITERS[name])
    project = make_project(tmp_path / "probed" / "project", WRITERS[name])
    plain = run_plain(["train.py"], twin)
    run = run_redirected(project, tmp_path / "probed")
    assert plain.returncode == 0, plain.stderr
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout == plain.stdout.replace(str(twin), str(project))


@pytest.mark.slow
def test_torch_and_numpy_writers(tmp_path: Path) -> None:
    code = """
        import numpy, torch
        from torch.utils.tensorboard import SummaryWriter
        model = torch.nn.Linear(2, 2)
        os.mkdir("checkpoints")
        for f in ("checkpoints/m.pt", pathlib.Path("checkpoints/p.pt")):
            torch.save(model.state_dict(), f); print(sorted(torch.load(f)))
        print(sorted(torch.load("checkpoints/m.pt", mmap=True)))
        torch.save([1], "old.txt"); print(torch.load("old.txt"))
        numpy.save("a.npy", numpy.ones(3)); print(numpy.load("a.npy", mmap_mode="r+").sum())
        numpy.ones(2).tofile("b.bin"); print(numpy.fromfile("b.bin"))
        w = SummaryWriter("runs"); w.add_scalar("x", 1.0, 0); w.close()
        print(len(os.listdir("runs")))
    """
    twin = make_project(tmp_path / "plain" / "project", code)
    project = make_project(tmp_path / "probed" / "project", code)
    plain = run_plain(["train.py"], twin, forked=True)
    run = run_redirected(project, tmp_path / "probed", forked=True)
    assert plain.returncode == 0, plain.stderr
    assert (run.returncode, run.stdout) == (0, plain.stdout), run.stderr


@pytest.mark.slow
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_loader_workers_read_what_was_written(context: str, tmp_path: Path) -> None:
    workers = 2 if context == "fork" else 1  # which imports torch anew
    code = f"""
        import torch
        class Data(torch.utils.data.Dataset):
            def __len__(self): return 4
            def __getitem__(self, i):
                open(f"seen{{i}}", "w").write("1")
                return float(open("made.txt").read())
        if __name__ == "__main__":
            open("made.txt", "w").write("2.5")
            loader = torch.utils.data.DataLoader(Data(), num_workers={workers}, batch_size=2,
                multiprocessing_context={context!r})
            print([x.tolist() for x in loader], sum(n.startswith("seen") for n in os.listdir(".")))
    """
    project = make_project(tmp_path / "project", code)
    run = run_redirected(project, tmp_path, forked=True)
    assert (run.returncode, run.stdout) == (0, "[[2.5, 2.5], [2.5, 2.5]] 4\n"), run.stderr
