"""How many loops stand around a line, which tells a loop within a step from the training's own."""

from __future__ import annotations

from pathlib import Path

from torchdoctor.probe.measure.loops import loops_around

SOURCE = """\
def train(loader, model):
    while True:
        for x in loader.batches():
            loss = model(x)
            parts = [
                f(p)
                for p in model.parts
            ]
            for p in parts:
                loss = loss + p
        else:
            done()

def penalty(w):
    return sum(w[i] * 2 for i in range(len(w)))

class Net:
    for n in range(2):
        def forward(self, x):
            return x
"""


def test_loops_count_within_their_function(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(SOURCE)

    def loops(line: int) -> int:
        return loops_around({"file": str(file), "line": line, "function": "f"})

    wanted = {2: 1, 4: 2, 6: 3, 10: 3, 12: 1, 15: 1, 20: 0}
    assert {line: loops(line) for line in wanted} == wanted


def test_a_file_that_cannot_be_read_has_no_loops(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("for x in (:\n    pass\n")
    for file in (broken, tmp_path / "gone.py"):
        assert loops_around({"file": str(file), "line": 2, "function": "f"}) == 0
