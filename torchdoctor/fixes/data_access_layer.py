"""Read remote files through a cache: fsspec's, or Alluxio's.

## What it does
Answers files that the program opens through fsspec (`s3://`, `gs://`, `https://`) from an fsspec
cache on the local disk, which downloads each file once. If `alluxiofs` is installed and
ALLUXIO_WORKER_HOSTS names workers, reads go through Alluxio's fsspec client instead. Files on a
network mount are for `fast-storage`.

## Why it helps
From the second epoch on, a file costs one question to the server (has it changed?), not a download.

## Risks
The same bytes: each read asks for size, time, ETag or generation of the file, and a changed one is
downloaded anew, whole, which is more than a program needs that reads a small part of it. The cache
takes disk. Readers in C (`pyarrow.fs`, `h5py`), `cat`, `get` and async methods are not redirected.

## Make it permanent
    fsspec.open("simplecache::s3://bucket/key", simplecache={"cache_storage": "/local/cache"})

## Sources
- fsspec: https://filesystem-spec.readthedocs.io/en/latest/features.html#caching-files-locally
"""

import functools
import hashlib
import os
import threading
from typing import Any

from torchdoctor.edits.calls import loader_location
from torchdoctor.queries.lookup import place
from torchdoctor.queries.slow_reads import LEAST_WAIT, wait_share
from torchdoctor.queries.touched import WAITS, waits
from torchdoctor.schema import Evidence, Example, FixSpec, Recording, RemoteReads, Settings, fact

# `created` of a local file is the time of its last change of any kind.
_STATE = (
    "size",
    "mtime",
    "created",
    "ETag",
    "etag",
    "LastModified",
    "last_modified",
    "generation",
    "md5Hash",
)


def refuses(recording: Recording) -> Evidence | None:
    storage = recording.storage
    wait = wait_share(recording)
    if wait is not None and wait < LEAST_WAIT:
        return fact("hardly-waits", share=wait)
    if storage is None or not storage.remote:
        return fact("no-object-store")
    if "fsspec" not in storage.available:
        return fact("no-fsspec")
    return None


def settings(recording: Recording) -> list[Settings]:
    storage = recording.storage
    layers: list[Settings] = [{"layer": "simplecache"}]
    if storage is not None and storage.alluxio_workers and "alluxiofs" in storage.available:
        layers.insert(0, {"layer": "alluxio", "worker_hosts": storage.alluxio_workers})
    return layers


class _Layers:
    """The cache of each file system that a process uses; `folder`: shared by all processes."""

    def __init__(self, folder: str, fsspec: Any, settings: Settings) -> None:
        self.folder = folder
        self._fsspec = fsspec
        self._settings = settings
        self._layers: dict[int, tuple[Any, Any]] = {}
        self._lock = threading.RLock()
        self.busy = threading.local()  # its own reads are not redirected again

    def open(self, filesystem: Any, path: str) -> Any:
        """Return a file in binary mode, from the layer over `filesystem`."""
        self.busy.on = True
        try:
            with self._lock:
                if id(filesystem) not in self._layers:
                    self._layers[id(filesystem)] = filesystem, self._layer(filesystem)
                opened = self._layers[id(filesystem)][1].open(path, "rb")
                if self._settings["layer"] != "alluxio":
                    # Whole files appear in the shared folder at once; each process downloads to its
                    # own, and nobody ever sees half of one.
                    shared = os.path.join(self.folder, os.path.basename(opened.name))
                    if not os.path.exists(shared):
                        os.replace(opened.name, shared)
                return opened
        finally:
            self.busy.on = False

    def _layer(self, filesystem: Any) -> Any:
        if self._settings["layer"] == "alluxio":
            hosts = self._settings["worker_hosts"]
            return self._fsspec.filesystem("alluxiofs", fs=filesystem, worker_hosts=hosts)
        return self._fsspec.filesystem(
            "simplecache",
            fs=filesystem,
            cache_storage=[self.folder, os.path.join(self.folder, f"of-{os.getpid()}")],
            cache_mapper=functools.partial(_version, filesystem),
            skip_instance_cache=True,
        )

    def forget(self) -> None:
        """Let a forked child download to a folder of its own."""
        self._layers.clear()
        self._lock = threading.RLock()


def _version(filesystem: Any, path: str) -> str:
    """Return the name of a cached file: what it is, and in which state it is now."""
    info = filesystem.info(path)
    state = [(key, str(info[key])) for key in _STATE if key in info]
    # Not its token, which differs in each process.
    options = (filesystem.storage_args, sorted(filesystem.storage_options.items()))
    text = repr((type(filesystem).__name__, options, path, state))
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def apply(torch: Any, settings: Settings, program: Any) -> None:
    try:
        import fsspec

        if settings["layer"] == "alluxio":
            import alluxiofs

            fsspec.register_implementation("alluxiofs", alluxiofs.AlluxioFileSystem, clobber=True)
    except ImportError as error:
        program.refuse("package-not-installed", package=error.name)
    layers = _Layers(program.shared_folder("cached"), fsspec, settings)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=layers.forget)

    def make(old: Any) -> Any:
        def open(self: Any, path: Any, mode: str = "rb", *args: Any, **kwargs: Any) -> Any:
            protocol = program.remote_protocol(self)
            whole = mode == "rb" and not kwargs.get("compression")
            if protocol is None or not whole or getattr(layers.busy, "on", False):
                return old(self, path, mode, *args, **kwargs)
            try:
                opened = layers.open(self, self._strip_protocol(path))
            except Exception:
                # The program gets its file, or the error that it would have got, in the old way.
                return old(self, path, mode, *args, **kwargs)
            program.applied(layer=settings["layer"], protocol=protocol)
            return opened

        return open

    program.set_reason("no-remote-file-read")
    program.replace(fsspec.AbstractFileSystem, "open", make)


def _opened(recording: Recording) -> RemoteReads | None:
    """Return the protocol that is opened most."""
    remote = recording.storage.remote if recording.storage is not None else []
    return max(remote, key=lambda reads: reads.opens, default=None)


def instruction(settings: Settings, recording: Recording) -> str:
    opened = _opened(recording)
    where = place(recording, opened.location if opened is not None else None, "")
    before = f"{where}  " if where else ""
    if settings["layer"] == "alluxio":
        target = repr(opened.protocol) if opened is not None else "..."
        return (
            f'{before}fs = fsspec.filesystem("alluxiofs", target_protocol={target}, '
            f"worker_hosts={settings['worker_hosts']!r})"
        )
    if opened is None:
        return FIX.permanent_form
    url = f"{opened.protocol}://{opened.example.removeprefix(f'{opened.protocol}://') or '...'}"
    cache = '{"cache_storage": "/path/on/a/local/disk"}'
    return f'{before}fsspec.open("simplecache::{url}", simplecache={cache})'


FIX = FixSpec(
    name="cache remote files",
    treats=("slow-storage", "loader-io-bound", "data-wait"),
    keeps_results="exactly",
    phases=("data_wait_s", "loader_start_s", "before_forward_s"),
    touches=lambda recording: waits(recording, *WAITS, "before_forward_s"),
    p_helps=0.6,  # reads wait for the network
    refuses=refuses,
    sentences={
        "no-object-store": "No file was seen being read in the loop from an object store by "
        "fsspec.",
        "no-fsspec": "fsspec is not installed in the program's environment (pip install fsspec).",
        "no-remote-file-read": "No remote file was read through Python.",
    },
    settings=settings,
    suits=lambda trace: False,
    apply=apply,
    location=lambda recording: (
        getattr(_opened(recording), "location", None) or loader_location(recording)
    ),
    instruction=instruction,
    example=Example(
        code="""
import os, tempfile
import fsspec
from fsspec.implementations.local import LocalFileSystem
class Store(LocalFileSystem):  # stands for s3, gs, https
    protocol = "store"
    downloads = 0
    def _open(self, *args, **kwargs):
        Store.downloads += 1
        return super()._open(*args, **kwargs)
    def get_file(self, *args, **kwargs):
        Store.downloads += 1
        return super().get_file(*args, **kwargs)
fsspec.register_implementation("store", Store)
path = os.path.join(tempfile.mkdtemp(), "0.bin")
with open(path, "wb") as file:
    file.write(b"abcd")
model = torch.nn.Linear(4, 1)
for epoch in range(3):
    with fsspec.open(f"store://{path}", "rb") as file:
        x = torch.tensor(list(file.read())).float()
    model(x).sum().backward()
print(x.tolist(), "downloads:", Store.downloads)
""",
        settings={"layer": "simplecache"},
        needs="fsspec",
        without="[97.0, 98.0, 99.0, 100.0] downloads: 3",
        with_fix="[97.0, 98.0, 99.0, 100.0] downloads: 1",
    ),
)
