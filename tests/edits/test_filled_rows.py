"""The line that fills rows of tokens is told where there is only one, whatever is between."""

import textwrap
from pathlib import Path

import pytest

from torchdoctor.edits.filled_rows import filled_rows
from torchdoctor.schema import Binding, Location

FILL = "ids = torch.zeros(len(rows), LONGEST, dtype=torch.long)  # here"
PROGRAMS = {
    "a function called in the loop": (
        "fixed",
        f"""
LONGEST = 256
def tokenize(rows):
    {FILL}
    for number, row in enumerate(rows):
        ids[number, : len(row)] = torch.tensor(row)
    return ids
def main():
    for first in range(0, 4000, 16):
        ids = tokenize(corpus[first : first + 16])
        vectors.append(model(ids.to(device)))
main()
""",
    ),
    "a default of a parameter": (
        "fixed",
        f"""
def tokenize(rows, LONGEST=256):
    {FILL}
    return ids, ids != 0
for rows in batches:
    ids, mask = tokenize(rows)
    model(input_ids=ids, attention_mask=mask)
""",
    ),
    "a tokenizer, by a field of what it returns": (
        "asked",
        """
for rows in batches:
    batch = tokenizer(rows, padding="max_length", max_length=256)  # here
    model(**batch.to("cuda"))
""",
    ),
    "a data set of the program's own": (
        "fixed",
        """
class Sentences(torch.utils.data.Dataset):
    def __init__(self, rows, longest):
        self.rows, self.longest = rows, longest
    def __getitem__(self, index):
        row = self.rows[index]
        return F.pad(row, (0, self.longest - len(row)))  # here
loader = DataLoader(Sentences(rows, 256), batch_size=16)
for ids in loader:
    model(ids)
""",
    ),
    "a collate function with lists": (
        "fixed",
        """
def collate(rows):
    filled = []
    for row in rows:
        filled.append(row + [0] * (256 - len(row)))  # here
    return torch.tensor(filled)
for ids in DataLoader(rows, batch_size=16, collate_fn=collate):
    model(ids)
""",
    ),
    "all data before the loop": (
        "whole-set",
        """
def main():
    ids = pad_sequence(rows, batch_first=True)  # here
    loader = DataLoader(TensorDataset(ids, labels), batch_size=16)
    for epoch in range(3):
        for x, y in loader:
            model(x)
main()
""",
    ),
    "the longest of all data": (
        "fixed",
        """
LONGEST = max(map(len, rows))
for batch in batches:
    ids = torch.full((len(batch), LONGEST), 0)  # here
    model(ids)
""",
    ),
}
UNTOLD = {
    "the longest row of the batch decides": """
for rows in batches:
    ids = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
    model(ids)
""",
    "so it does by a name": """
def tokenize(rows):
    longest = max(len(row) for row in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    return ids
for rows in batches:
    model(tokenize(rows))
""",
    "each batch is padded": """
def collate(rows):
    return pad_sequence(rows, batch_first=True)
for ids in DataLoader(rows, collate_fn=collate):
    model(ids)
""",
    "the size is that of another batch": """
for rows in batches:
    count, longest = rows.shape
    model(torch.zeros(count, longest, dtype=torch.long) + rows)
""",
    "two places may be meant": """
for rows in batches:
    if short:
        ids = torch.zeros(16, 256, dtype=torch.long)
    else:
        ids = torch.ones(16, 256, dtype=torch.long)
    model(ids)
""",
    "a length that no row has": """
for rows in batches:
    model(torch.zeros(16, 8, dtype=torch.long))
""",
    "a mask, and nothing of the tokens": """
for rows in batches:
    mask = torch.ones(16, 256, dtype=torch.bool)
    model(rows, mask)
""",
    "images": """
for rows in batches:
    model(torch.zeros(16, 3, 256, 256))
""",
}


def told(folder: Path, source: str) -> tuple[str, int] | None:
    script = folder / "infer.py"
    script.write_text(textwrap.dedent(source))
    lines = script.read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if "model(" in text)
    call = Binding(location=Location(file=str(script), line=line), name="model")
    filled = filled_rows(call, {256})
    return None if filled is None else (filled.way, filled.location.line)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_line_that_fills_the_rows_is_found(tmp_path: Path, name: str) -> None:
    way, source = PROGRAMS[name]
    lines = source.splitlines()
    line = next(number for number, text in enumerate(lines, 1) if "# here" in text)
    assert told(tmp_path, source) == (way, line)


@pytest.mark.parametrize("name", UNTOLD)
def test_no_line_is_told_where_none_is_sure(tmp_path: Path, name: str) -> None:
    assert told(tmp_path, UNTOLD[name]) is None


def test_a_function_of_a_module_beside_the_script_is_followed(tmp_path: Path) -> None:
    (tmp_path / "data.py").write_text(
        "LONGEST = 256\ndef tokenize(rows):\n    return torch.zeros(len(rows), LONGEST)\n"
    )
    script = tmp_path / "infer.py"
    loop = "for rows in batches:\n    model(tokenize(rows))\n"
    script.write_text(f"from data import tokenize\n{loop}")
    call = Binding(location=Location(file=str(script), line=3), name="model")
    filled = filled_rows(call)
    assert filled is not None
    assert (filled.location.file, filled.location.line) == (str(tmp_path / "data.py"), 3)


def test_a_source_that_cannot_be_read_tells_nothing(tmp_path: Path) -> None:
    missing = Location(file=str(tmp_path / "gone.py"), line=1)
    assert filled_rows(Binding(location=missing, name="model")) is None
