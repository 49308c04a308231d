"""Edits of calls that hold much of the step: made where it is sure, else not at all."""

from __future__ import annotations

import itertools
import random
import re
from collections import deque
from typing import Any

import pytest
from written_code import calls, imported, same_code, statements

from torchdoctor.edits import (
    BatchSamplerEdit,
    Edit,
    KeptResultEdit,
    KeywordEdit,
    OpenedOnceEdit,
    RareCallEdit,
    RingEdit,
)
from torchdoctor.edits.source import EditedProgram, edited

SAMPLES = """import zipfile

class Tiles:
    def __getitem__(self, index):
        with zipfile.ZipFile(self.path) as archive:
            raw = archive.read(index)
        return raw
"""
TABLE = """from torch.utils.data import DataLoader, TensorDataset

table = TensorDataset(x, y)
loader = DataLoader(table, batch_size=64, shuffle=True)
"""
METRIC = """def main(loader, metric):
    done = 0
    for x, y in loader:
        loss = train(x, y)
        auc = metric.compute()
        done += 1
        if done % 100 == 0:
            print(done, loss, auc)
"""
DROPPED = """def main(loader, writer):
    for step, x in enumerate(loader):
        train(x)
        log_histograms(writer)
"""
GRAPH = """import torch

def adjacency_of(edges, nodes):
    index = torch.cat([edges, edges.flip(0)], 1)
    return torch.sparse_coo_tensor(index, torch.ones(index.shape[1]), (nodes, nodes))

def forward(x, edges):
    return adjacency_of(edges, x.shape[0]) @ x
"""
REPLAY = """import random
from collections import deque

class Replay:
    def __init__(self, capacity):
        self.memory = deque(maxlen=capacity)

    def add(self, *transition):
        # one more
        self.memory.append(transition)

    def sample(self, size):
        return random.sample(self.memory, size)

    def __len__(self):
        return len(self.memory)
"""
OPENED = OpenedOnceEdit(file="", line=5)
BATCHED = BatchSamplerEdit(file="", line=4)
METRIC_RARELY = RareCallEdit(file="", function="compute", every=10)
DROPPED_RARELY = RareCallEdit(file="", function="log_histograms", every=10)
KEPT = KeptResultEdit(file="", line=4, function="adjacency_of", kept=8)
RING = RingEdit(file="", line=13)


@pytest.mark.parametrize(
    ("source", "edit"),
    [
        (SAMPLES, OPENED),
        (TABLE, BATCHED),
        (METRIC, METRIC_RARELY),
        (DROPPED, DROPPED_RARELY),
        (GRAPH, KEPT),
        (REPLAY, RING),
    ],
)
def test_an_edit_that_was_made_changes_nothing_more(source: str, edit: Edit) -> None:
    once = edited(source, edit)
    assert once is not None
    assert once != source
    if isinstance(edit, KeptResultEdit):  # an import stands above it now
        edit = KeptResultEdit(file="", line=edit.line + 2, function=edit.function, kept=edit.kept)
    assert edited(once, edit) == once


def test_an_archive_is_opened_once_in_each_process() -> None:
    code = edited(SAMPLES, OPENED)
    assert code is not None
    assert "archive = _open_once(os.getpid(), self.path)" in statements(code)  # under no `with`
    assert {"functools", "os"} <= imported(code)
    opened: list[str] = []
    scope: dict[str, Any] = {}
    exec(code, scope)

    class Archive:
        def __init__(self, path: str) -> None:
            opened.append(path)

        def read(self, index: int) -> int:
            return index

    scope["zipfile"] = type("zipfile", (), {"ZipFile": Archive})
    tiles = scope["Tiles"]()
    tiles.path = "a.zip"
    assert [tiles[0], tiles[3]] == [0, 3]
    assert opened == ["a.zip"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("(self.path)", "(self.path, 'a')"),
        ("(self.path)", "(self.path, mode)"),
        ("(self.path)", "(io.BytesIO(self.raw))"),
        ("(self.path)", "(*self.path)"),
        ("raw = archive.read(index)", "archive.writestr(index, b'')"),
        ("raw = archive.read(index)", "archive.close()"),
        ("raw = archive.read(index)", "yield archive"),
        (" as archive", ""),
        ("zipfile.ZipFile(self.path) as archive", "zipfile.ZipFile(self.path) as archive, lock"),
        ("import zipfile", "from archives import zipfile"),
    ],
)
def test_an_archive_is_left_where_it_may_be_written_or_closed(old: str, new: str) -> None:
    assert edited(SAMPLES.replace(old, new), OPENED) is None


def test_an_archive_that_is_assigned_is_kept_unless_it_is_closed() -> None:
    plain = SAMPLES.replace(
        "with zipfile.ZipFile(self.path) as archive:", "archive = zipfile.ZipFile(self.path)"
    )
    plain = plain.replace("            raw", "        raw")
    code = edited(plain, OPENED)
    assert code is not None
    assert calls(code, "_open_once") == ["_open_once(os.getpid(), self.path)"]
    closed = plain.replace("        return raw", "        archive.close()\n        return raw")
    assert edited(closed, OPENED) is None


def test_a_database_of_lmdb_is_kept_if_it_is_only_read() -> None:
    source = SAMPLES.replace("import zipfile", "import lmdb")
    source = source.replace(
        "with zipfile.ZipFile(self.path) as archive",
        "with lmdb.open(self.path, readonly=True, lock=False) as archive",
    )
    code = edited(source, OPENED)
    assert code is not None
    assert calls(code, "open") == ["lmdb.open(path, readonly=True, lock=False)"]
    assert calls(code, "_open_once") == ["_open_once(os.getpid(), self.path)"]
    assert edited(source.replace("readonly=True, ", ""), OPENED) is None


@pytest.mark.parametrize(
    ("call", "after"),
    [
        (
            "DataLoader(table, batch_size=64, shuffle=True)",
            "DataLoader(table, batch_size=None, sampler="
            "BatchSampler(RandomSampler(table), 64, False))",
        ),
        (
            "DataLoader(table, 64, True, drop_last=True, num_workers=2)",
            "DataLoader(table, batch_size=None, sampler="
            "BatchSampler(RandomSampler(table), 64, True), num_workers=2)",
        ),
        (
            "DataLoader(TensorDataset(x, y), batch_size=size)",
            "DataLoader(TensorDataset(x, y), batch_size=None, sampler="
            "BatchSampler(SequentialSampler(x), size, False))",
        ),
        ("DataLoader(table, batch_size=64, shuffle=args.shuffle)", None),
        ("DataLoader(table, batch_size=64, collate_fn=collate)", None),
        ("DataLoader(table, batch_size=64, sampler=sampler)", None),
        ("DataLoader(table, batch_sampler=batches)", None),
        ("DataLoader(table, batch_size=64, generator=generator)", None),
        ("DataLoader(made(), batch_size=64)", None),
        ("DataLoader(table)", None),
        ("DataLoader(*given)", None),
    ],
)
def test_a_loader_takes_whole_batches(call: str, after: str | None) -> None:
    source = TABLE.replace("DataLoader(table, batch_size=64, shuffle=True)", call)
    code = edited(source, BATCHED)
    if after is None:
        assert code is None
        return
    assert code is not None
    assert re.sub(r"\s+", "", after) in re.sub(r"\s+", "", code)
    own = "RandomSampler" if "RandomSampler" in after else "SequentialSampler"
    of_torch = {name.removeprefix("torch.utils.data.") for name in imported(code)}
    assert of_torch == {"DataLoader", "TensorDataset", "BatchSampler", own}


def test_a_loader_whose_batch_size_is_read_stays() -> None:
    assert edited(f"{TABLE}print(loader.batch_size)\n", BATCHED) is None


def test_a_loader_under_its_full_name_needs_no_import() -> None:
    source = (
        "import torch\n\n\nloader = torch.utils.data.DataLoader(t, batch_size=8, shuffle=True)\n"
    )
    code = edited(source, BATCHED)
    assert code is not None
    package = "torch.utils.data"
    assert f"{package}.BatchSampler({package}.RandomSampler(t), 8, False)" in code
    assert "import BatchSampler" not in code


def test_what_is_printed_now_and_then_is_computed_there() -> None:
    code = edited(METRIC, METRIC_RARELY)
    assert code is not None
    line = "auc = metric.compute()\n"
    moved = METRIC.replace(f"        {line}", "")
    moved = moved.replace("            print", f"            {line}            print")
    assert same_code(code, moved)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("        done += 1\n", "        done += 1\n        metric.update(x, y)\n"),
        ("        done += 1\n", "        done += 1\n        optimizer.step()\n"),
        ("        done += 1\n", "        done += 1\n        history.append(auc)\n"),
        ("print(done, loss, auc)\n", "print(done, loss, auc)\n    return auc\n"),
        ("if done % 100 == 0:", "if auc > 0.9:"),
        ("auc = metric.compute()", "auc, f1 = metric.compute()"),
        ("auc = metric.compute()", "auc = 2 * metric.compute()"),
    ],
)
def test_what_may_differ_where_it_is_read_stays(old: str, new: str) -> None:
    assert edited(METRIC.replace(old, new), METRIC_RARELY) is None


@pytest.mark.parametrize(
    ("loop", "test"),
    [
        ("for step, x in enumerate(loader):", "if step % 10 == 0:"),
        ("for step in range(100):", "if step % 10 == 0:"),
        ("for step in range(0, 1000, 16):", None),
        ("for x in loader:", None),
        ("for step, x in pairs(loader):", None),
    ],
)
def test_what_nobody_reads_is_called_in_every_tenth_step(loop: str, test: str | None) -> None:
    source = DROPPED.replace("for step, x in enumerate(loader):", loop)
    code = edited(source, DROPPED_RARELY)
    if test is None:
        assert code is None
        return
    assert code is not None
    assert f"        {test}\n            log_histograms(writer)\n" in code


def test_the_result_of_a_function_of_its_arguments_is_kept() -> None:
    code = edited(GRAPH, KEPT)
    assert code is not None
    assert "@functools.lru_cache(maxsize=8)\ndef adjacency_of(" in code


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("torch.ones(index.shape[1])", "torch.rand(index.shape[1])"),
        ("torch.ones(index.shape[1])", "weights"),
        ("    index =", "    nodes_seen.append(nodes)\n    edges[0] = 1\n    index ="),
        ("(edges, nodes):", "(edges, *nodes):"),
        ("def adjacency_of", "@torch.no_grad()\ndef adjacency_of"),
        ("import torch\n", "import numpy as np\nimport torch\n\nsize = 3\nsize = np.size(3)\n"),
    ],
)
def test_a_result_of_more_than_the_arguments_is_not_kept(old: str, new: str) -> None:
    source = f"{GRAPH}\nweights = 1\n".replace(old, new)
    if "np.size" in new:
        source = source.replace("(nodes, nodes)", "(np.int64(nodes), nodes)")
    line = source[: source.index("index =")].count("\n") + 1
    assert (
        edited(source, KeptResultEdit(file="", line=line, function="adjacency_of", kept=8)) is None
    )


def test_a_method_is_not_kept() -> None:
    inside = GRAPH.replace("def adjacency_of(", "class Net:\n  def adjacency_of(self, ")
    assert edited(inside.replace("\n    ", "\n      "), KEPT) is None


def drawn_by(source: str, is_ring: bool) -> list[tuple[int, list[int]]]:
    """Return the length and a sample of the memory after each of 17 steps, in which it is full."""
    scope: dict[str, Any] = {}
    exec(source, scope)
    replay = scope["Replay"](5)
    random.seed(0)
    drawn = []
    for step in range(17):
        replay.add(step)
        drawn.append((len(replay), replay.sample(min(step + 1, 3))))
    assert isinstance(replay.memory, deque) != is_ring
    return drawn


def test_a_ring_draws_what_the_deque_drew() -> None:
    code = edited(REPLAY, RING)
    assert code is not None
    assert "# one more" in code
    assert drawn_by(code, is_ring=True) == drawn_by(REPLAY, is_ring=False)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return len(self.memory)", "return sum(1 for _ in self.memory)"),
        ("return len(self.memory)", "self.memory.popleft()"),
        ("return len(self.memory)", "self.memory = deque(maxlen=3)"),
        ("return len(self.memory)", "return len(other.memory)"),
        ("return len(self.memory)", "self.memory[0] = None"),
        ("return len(self.memory)", "del self.memory[i]"),
        ("deque(maxlen=capacity)", "deque()"),
        ("deque(maxlen=capacity)", "deque(content, maxlen=capacity)"),
        ("self.memory.append(transition)", "self.memory.append(*transition)"),
        ("self.memory.append(transition)", "self.memory.appendleft(transition)"),
        ("def __init__", "def reset"),
        ("import random", "import secrets as random"),
    ],
)
def test_a_deque_stays_where_something_else_is_done_with_it(old: str, new: str) -> None:
    assert edited(REPLAY.replace(old, new), RING) is None


def test_what_is_read_by_its_number_is_the_same_element() -> None:
    source = REPLAY.replace(
        "return random.sample(self.memory, size)", "return [self.memory[i] for i in range(size)]"
    )
    code = edited(source, RING)
    assert code is not None
    assert drawn_by(code, is_ring=True) == drawn_by(source, is_ring=False)


def test_they_go_together_with_others_in_any_order() -> None:
    loader = TABLE.replace("shuffle=True)", "shuffle=True)  # the data")
    source = loader + SAMPLES.replace("import zipfile\n", "") + METRIC + GRAPH + REPLAY
    source = "import zipfile\n" + source.replace("import torch\n\n", "")
    source = source.replace("from torch.utils.data", "import torch\nfrom torch.utils.data", 1)

    def line(text: str) -> int:
        return source[: source.index(text)].count("\n") + 1

    at = line("loader = ")
    wanted: list[Edit] = [
        BatchSamplerEdit(file="", line=at),
        KeywordEdit(file="", line=at, callee="DataLoader", keyword="num_workers", value="2"),
        OpenedOnceEdit(file="", line=line("with zipfile")),
        KeptResultEdit(file="", line=line("index = torch"), function="adjacency_of", kept=8),
        METRIC_RARELY,
        RingEdit(file="", line=line("return random.sample")),
    ]
    program = EditedProgram(source)
    whole = program.with_edits(wanted)
    assert whole is not None
    for mark in (
        "num_workers=2",
        "BatchSampler(Rand",
        "_open_once(os",
        "lru_cache(maxsize=8)\ndef",
    ):
        assert mark in whole
    assert "memory_oldest = 0" in whole
    for order in itertools.islice(itertools.permutations(wanted), 0, 720, 60):
        assert program.with_edits(order) == whole


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("if done % 100 == 0:", "if done % 100 == 0 and get_rank() == 0:"),
        ("def main", "import torch.distributed as dist\n\ndef main"),
    ],
)
def test_what_every_rank_may_have_to_call_is_not_moved(old: str, new: str) -> None:
    assert edited(METRIC.replace(old, new, 1), METRIC_RARELY) is None


@pytest.mark.parametrize(
    ("line", "after"),
    [
        (
            "torch.load(os.path.join(self.folder, f'{index}.pt'))",
            "_open_once(os.getpid(), os.path.join(self.folder, f'{index}.pt'))",
        ),
        ("torch.load(self.path, weights_only=True)", "_open_once(os.getpid(), self.path)"),
        ("torch.load(self.path, map_location=device)", None),
        ("torch.load(self.files[index].open())", None),
    ],
)
def test_a_shard_is_loaded_once_in_each_process(line: str, after: str | None) -> None:
    head = "import os\nimport torch\n\nclass Shards:\n    def __getitem__(self, index):\n"
    source = f"{head}        shard = {line}\n"
    code = edited(source, OpenedOnceEdit(file="", line=6))
    if after is None:
        assert code is None
        return
    assert code is not None
    assert f"shard = {after}\n" in code


@pytest.mark.parametrize(
    ("line", "is_kept"),
    [
        ("y = x - x.mean()", True),
        ("x -= x.mean()", False),
        ("x[0] = 1", False),
        ("x.sort()", False),
        ("x[index].clamp_(0)", False),
    ],
)
def test_what_is_changed_in_place_is_loaded_anew(line: str, is_kept: bool) -> None:
    """The second sample would find the changes that the first one made."""
    head = (
        "import numpy\n\nclass D:\n    def get(self, index):\n        x = numpy.load(self.path)\n"
    )
    source = f"{head}        {line}\n        return x[index]\n"
    assert (edited(source, OpenedOnceEdit(file="", line=5)) is not None) == is_kept
