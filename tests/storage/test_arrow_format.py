"""pandas' readers of text, answered from Arrow: equal tables or none, through the real probe."""

from __future__ import annotations

import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from partial_recordings import recording

from torchdoctor.advice import catalogue
from torchdoctor.machine.storage import storage_facts

pytestmark = pytest.mark.skipif(
    find_spec("pandas") is None or find_spec("pyarrow") is None,
    reason="pandas or pyarrow is not installed",
)
FIX = catalogue.fixes()["arrow-format"]

HEAD = """
import os, sys, json, pandas, torch
from torch.utils.data import DataLoader, Dataset
folder = sys.argv[1]
torch.nn.Linear(1, 1)(torch.ones(1)).backward()
"""

EQUAL = """
import pandas.testing
reads = {
    "plain": lambda: pandas.read_csv(folder + "/mixed.csv"),
    "index": lambda: pandas.read_csv(folder + "/mixed.csv", index_col="name"),
    "dtype": lambda: pandas.read_csv(folder + "/mixed.csv", dtype={"whole": "float32"}),
    "category": lambda: pandas.read_csv(folder + "/mixed.csv", dtype={"name": "category"}),
    "dates": lambda: pandas.read_csv(folder + "/mixed.csv", parse_dates=["when"]),
    "columns": lambda: pandas.read_csv(folder + "/mixed.csv", usecols=["whole", "gaps"]),
    "two levels": lambda: pandas.read_csv(folder + "/mixed.csv", index_col=[0, 1]),
    "numbered": lambda: pandas.read_csv(folder + "/mixed.csv", header=None),
    "table": lambda: pandas.read_table(folder + "/mixed.csv", sep=","),
    "json": lambda: pandas.read_json(folder + "/rows.json"),
    "lines": lambda: pandas.read_json(folder + "/lines.json", lines=True),
    "function": lambda: pandas.read_csv(folder + "/mixed.csv", converters={"whole": str}),
    "none": lambda: pandas.read_json(folder + "/objects.json"),
}
names = ("read_csv", "read_table", "read_json")
original = {name: getattr(pandas, name).__wrapped__ for name in names}
for name, read in reads.items():
    tables = [read() for _ in range(3)]
    wrapped = {key: getattr(pandas, key) for key in original}
    for key, function in original.items():
        setattr(pandas, key, function)
    expected = read()
    for key, function in wrapped.items():
        setattr(pandas, key, function)
    for table in tables:
        pandas.testing.assert_frame_equal(table, expected, check_exact=True)
        assert list(map(type, table.iloc[:, -1])) == list(map(type, expected.iloc[:, -1])), name
        if name != "none":
            table.iloc[0, 0] = table.iloc[1, 0]  # each caller has a table of its own
    print(name)
"""


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "data"
    made.mkdir()
    (made / "mixed.csv").write_text(
        "name,whole,gaps,when,flag\na,1,0.1,2024-01-01,True\nb,2,,2024-01-02,False\nc,3,1e-9,,True\n"
    )
    (made / "rows.json").write_text('[{"a": 1, "b": "x"}, {"a": 2, "b": null}]')
    (made / "lines.json").write_text('{"a": 1.5}\n{"a": 2.5}\n')
    (made / "objects.json").write_text('[{"a": {"k": 1}}, {"a": {"j": 2}}]')
    return made


def _run(tmp_path: Path, probed, program: str, folder: Path, fixed: bool = True, **plan):
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / "train.py").write_text(HEAD + program)
    fixes = [{"id": "arrow-format", "file": FIX.file, "settings": {}}] if fixed else []
    ran = probed(
        [str(tmp_path / "train.py"), str(folder)],
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
def test_tables_are_equal_in_values_types_and_index(tmp_path, probed, folder):
    ran = _run(tmp_path / "on", probed, EQUAL, folder)
    assert "numbered" in ran.stdout
    (fix,) = ran.main["fixes"]
    assert fix["state"] == "applied"
    copies = list((tmp_path / "on/channel/staged/arrow").iterdir())
    assert 5 <= len(copies) < 13, "what Arrow would change is parsed each time"
    assert not [p for p in copies if p.suffix == ".part"]


CHANGED = """
for content in ("a\\n1\\n", "a\\n1\\n2\\n", "a\\nx\\n"):
    with open(folder + "/new.csv", "w") as file:
        file.write(content)
    for _ in range(2):
        print(pandas.read_csv(folder + "/new.csv")["a"].tolist())
try:
    pandas.read_csv(folder + "/none.csv")
except FileNotFoundError:
    print("not found")
with open(folder + "/new.csv") as file:
    print(len(pandas.read_csv(file)))
print(type(pandas.read_csv(folder + "/new.csv", chunksize=1)).__name__)
"""


@pytest.mark.slow
def test_a_changed_file_is_parsed_anew_and_the_rest_is_pandas_own(tmp_path, probed, folder):
    ran = _run(tmp_path / "on", probed, CHANGED, folder)
    plain = _run(tmp_path / "off", probed, CHANGED, folder, fixed=False)
    assert ran.stdout == plain.stdout
    assert "TextFileReader" in ran.stdout


READING = """
class Rows(Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        table = pandas.read_csv(folder + "/mixed.csv")
        return torch.tensor([float(table["whole"][index % 3])])

for x in DataLoader(Rows(), batch_size=2, num_workers=1):
    torch.nn.Linear(1, 1)(x).sum().backward()
"""


@pytest.mark.slow
def test_reads_in_the_loader_are_seen(tmp_path, probed, folder):
    ran = _run(tmp_path / "seen", probed, READING, folder, fixed=False, watch_files=True)
    facts = storage_facts(ran.channel, tmp_path)
    (table,) = facts.tables
    assert (table.function, table.calls, table.files) == ("read_csv", 6, 1)
    assert table.total_s > 0
    assert table.example == str(folder / "mixed.csv")
    source = (tmp_path / "seen" / "train.py").read_text().splitlines()
    assert "pandas.read_csv" in source[table.location.line - 1]
    assert {"pandas", "pyarrow"} & set(facts.available)


STEPS = {"total_steps_seen": 100, "mean_s": 0.01, "median_s": 0.01}


def _seen(available=("pyarrow",), **table):
    row = {"function": "read_csv", "calls": 400, "files": 4, "total_s": 0.5, **table}
    storage = {"tables": [row], "available": list(available)}
    return recording({"storage": storage, "steps": STEPS})


def test_tried_where_parsing_takes_time_again_and_again():
    seen = _seen()
    assert FIX.refuses(seen) is None
    assert FIX.settings(seen) == [{}]
    assert 'pandas.read_csv("labels.csv").to_feather' in FIX.instruction({}, seen)


def test_the_instruction_names_the_programs_own_files_and_line(tmp_path):
    """The command that converts is run here, on a file of the kind that it names."""
    import pandas

    (tmp_path / "a.csv").write_text("a,b\n1,x\n")
    line = {"file": str(tmp_path / "train.py"), "line": 31}
    table = {"example": str(tmp_path / "a.csv"), "location": line}
    seen = _seen(**table)
    command, edit = FIX.instruction({}, seen).splitlines()
    assert "train.py:31  pandas.read_feather(" in edit
    assert FIX.location(seen).line == 31
    command = command.replace("python", shlex.quote(sys.executable), 1)
    subprocess.run(command, shell=True, check=True)
    assert pandas.read_feather(tmp_path / "a.csv.feather")["b"].tolist() == ["x"]
    one = FIX.instruction({}, _seen(**table, files=1)).splitlines()[0]
    assert "rglob" not in one and str(tmp_path / "a.csv") in one


def test_refused_with_the_reason():
    assert FIX.refuses(recording()).fact == "no-tables-read"
    assert FIX.refuses(_seen(available=())).fact == "no-pyarrow"
    assert FIX.refuses(_seen(calls=4)).fact == "read-once"
    assert FIX.refuses(_seen(total_s=0.001)).fact == "parsing-hardly-matters"


MOVED_LINK = """
stale = 0
for number in range(40):
    with open(f"{folder}/{number}.csv", "w") as file:
        file.write("a\\n%03d\\n" % number)
for number in range(40):
    os.utime(f"{folder}/{number}.csv", ns=(0, 0))
for number in range(40):
    if os.path.lexists(folder + "/current.csv"):
        os.unlink(folder + "/current.csv")
    os.symlink(f"{folder}/{number}.csv", folder + "/current.csv")
    stale += int(pandas.read_csv(folder + "/current.csv")["a"][0]) != number
print("stale:", stale)
"""


@pytest.mark.slow
def test_a_link_that_moves_is_followed(tmp_path, probed, folder):
    ran = _run(tmp_path / "on", probed, MOVED_LINK, folder)
    assert ran.stdout == "stale: 0\n", ran.stderr
