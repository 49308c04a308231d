"""Remote reads answered from a cache: a real web server, the real probe."""

from __future__ import annotations

import functools
import http.server
import threading
from pathlib import Path

import pytest
from partial_recordings import merged, recording

from torchdoctor.advice import catalogue
from torchdoctor.checks.slow_storage import CHECK
from torchdoctor.machine.storage import storage_facts

pytest.importorskip("fsspec")
FIX = catalogue.fixes()["data-access-layer"]

REMOTE = """
import sys, fsspec, torch
from torch.utils.data import DataLoader, Dataset

class Files(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        with fsspec.open(f"{sys.argv[1]}/{index}.bin", "rb") as file:
            return torch.tensor(list(file.read())).float()

if __name__ == "__main__":
    model = torch.nn.Linear(3, 1)
    loader = DataLoader(Files(), batch_size=2, num_workers=int(sys.argv[2]),
                        multiprocessing_context="spawn" if int(sys.argv[2]) else None)
    for epoch in range(3):
        for x in loader:
            print(x.tolist())
            model(x).sum().backward()
"""


class Server(http.server.SimpleHTTPRequestHandler):
    asked: list[str]

    def do_GET(self):
        self.asked.append(self.path)
        super().do_GET()

    def log_message(self, *_):
        pass


@pytest.fixture
def served(tmp_path):
    """A folder, its URL, and the downloads so far."""
    folder = tmp_path / "served"
    folder.mkdir()
    for number in range(4):
        (folder / f"{number}.bin").write_bytes(bytes([number, 7, 9]))
    asked: list[str] = []
    handler = type("Counting", (Server,), {"asked": asked})
    made = functools.partial(handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), made) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield folder, f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()


def _run(tmp_path: Path, probed, program: str, *arguments: str, settings=None, **plan):
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / "train.py").write_text(program)
    fixes = []
    if settings is not None:
        fixes = [{"id": "data-access-layer", "file": FIX.file, "settings": settings}]
    ran = probed(
        [str(tmp_path / "train.py"), *arguments],
        cwd=tmp_path,
        folder=tmp_path,
        after="continue",
        fixes=fixes,
        **plan,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.said() == []
    return ran


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["0", "1"])
def test_each_url_is_downloaded_once(tmp_path, probed, served, workers):
    pytest.importorskip("aiohttp")
    _, url, asked = served
    plain = _run(tmp_path / "off", probed, REMOTE, url, workers, watch_files=True)
    without = len(asked)
    asked.clear()
    ran = _run(tmp_path / "on", probed, REMOTE, url, workers, settings={"layer": "simplecache"})
    assert ran.stdout == plain.stdout
    # fsspec asks once whether a file is there, by a GET, and once for its content.
    assert len(asked) <= 8 < without
    facts = storage_facts(plain.channel, tmp_path)
    assert [(r.protocol, r.files) for r in facts.remote] == [("http", 4)]
    where = facts.remote[0].location
    assert where is not None and "open(" in REMOTE.splitlines()[where.line - 1]
    assert "fsspec" in facts.available


CHANGING = """
import sys, time, fsspec, torch
model = torch.nn.Linear(1, 1)
for content in (b"a", b"bc"):
    open(sys.argv[1] + "/0.bin", "wb").write(content)
    with fsspec.open(sys.argv[2] + "/0.bin", "rb") as file:
        print(file.read())
    model(torch.ones(1)).backward()
try:
    fsspec.open(sys.argv[2] + "/none.bin", "rb").open().read()
except FileNotFoundError:
    print("not found")
"""


@pytest.mark.slow
def test_a_changed_file_is_downloaded_anew_and_a_missing_one_missed(tmp_path, probed, served):
    pytest.importorskip("aiohttp")
    folder, url, _ = served
    settings = {"layer": "simplecache"}
    ran = _run(tmp_path / "on", probed, CHANGING, str(folder), url, settings=settings)
    assert ran.stdout.split("\n")[:3] == ["b'a'", "b'bc'", "not found"]


ALLUXIO = """
import sys, types
import fsspec
from fsspec.implementations.local import LocalFileSystem

class Store(LocalFileSystem):
    protocol = "store"

class AlluxioFileSystem(fsspec.AbstractFileSystem):  # has the signature of alluxiofs' own
    protocol = "alluxiofs"

    def __init__(self, fs=None, worker_hosts=None, **kwargs):
        super().__init__(**kwargs)
        self.fs, self.worker_hosts = fs, worker_hosts

    def _open(self, path, mode="rb", **kwargs):
        print("through", self.worker_hosts, self.fs.protocol)
        return self.fs._open(path, mode, **kwargs)
"""
THROUGH = """
import alluxiofs, fsspec, torch, sys
fsspec.register_implementation("store", alluxiofs.Store)
with fsspec.open("store://" + sys.argv[1], "rb") as file:
    print(file.read())
torch.nn.Linear(1, 1)(torch.ones(1)).backward()
"""


@pytest.mark.slow
def test_alluxios_client_is_put_over_the_programs_file_system(tmp_path, probed, served):
    folder = tmp_path / "on"
    folder.mkdir()
    (folder / "alluxiofs.py").write_text(ALLUXIO)
    settings = {"layer": "alluxio", "worker_hosts": "a:1,b:2"}
    path = str(served[0] / "0.bin")
    env = {"PYTHONPATH": str(folder)}
    ran = _run(folder, probed, THROUGH, path, settings=settings, env=env)
    assert "through a:1,b:2 store" in ran.stdout
    assert "b'\\x00\\x07\\t'" in ran.stdout
    bare = "import torch; torch.nn.Linear(1, 1)(torch.ones(1)).backward()"
    plain = _run(tmp_path / "without", probed, bare, settings=settings)
    (fix,) = plain.main["fixes"]
    assert fix["state"] == "refused"
    assert fix["why"]["values"] == {"package": "alluxiofs"}, "it is not installed"


def _seen(**storage):
    return recording(merged({"storage": storage}, merged({**CHECK.fires[0], "storage": {}})))


def test_what_is_tried():
    s3 = [{"protocol": "s3", "files": 9, "opens": 9}]
    seen = _seen(remote=s3, available=["fsspec"])
    assert FIX.refuses(seen) is None
    assert FIX.settings(seen) == [{"layer": "simplecache"}]
    assert "simplecache::s3://" in FIX.instruction({"layer": "simplecache"}, seen)
    line = {"file": "/w/data.py", "line": 7}
    known = _seen(remote=[{**s3[0], "example": "bucket/0.bin", "location": line}])
    said = FIX.instruction({"layer": "simplecache"}, known)
    assert said.startswith('data.py:7  fsspec.open("simplecache::s3://bucket/0.bin"')
    alluxio = _seen(remote=s3, available=["fsspec", "alluxiofs"], alluxio_workers="a:1")
    assert FIX.settings(alluxio)[0] == {"layer": "alluxio", "worker_hosts": "a:1"}


def test_refused_with_the_reason():
    assert FIX.refuses(_seen(remote=[{"protocol": "s3"}])).fact == "no-fsspec"
    assert FIX.refuses(_seen(available=["fsspec"])).fact == "no-object-store"
    mounts = CHECK.fires[0]["storage"]["mounts"]
    assert FIX.refuses(_seen(mounts=mounts, available=["fsspec"])).fact == "no-object-store"
