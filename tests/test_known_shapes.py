import re

import pytest
from partial_recordings import recording

from torchdoctor.queries.hot_calls import hot_calls
from torchdoctor.queries.known_shapes import known_shapes, shape_at, shape_of
from torchdoctor.schema import Location, process

SHAPES = known_shapes()


def test_there_are_many_and_each_has_a_source():
    assert len(SHAPES) >= 25
    assert all(shape.source.startswith("https://") for shape in SHAPES.values())
    assert all(not shape.write.endswith(".") for shape in SHAPES.values())


@pytest.mark.parametrize("name", SHAPES)
def test_an_example_has_the_shape_and_a_cured_line_has_not(name):
    shape = SHAPES[name]
    for example, fits in ((shape.positive, True), (shape.negative, False)):
        function, _, text = example.partition(": ")
        assert shape.fits(text, function) is fits
        if fits:
            assert shape_of(text, function) is shape  # no earlier shape takes it away


def test_patterns_are_regular_expressions():
    for shape in SHAPES.values():
        for pattern in (shape.line, shape.within, shape.leaf, shape.not_line):
            re.compile(pattern)


def row(line, text, count, function="sample"):
    return {
        "location": {"file": "/w/train.py", "line": line, "function": function},
        "phase": "after_step",
        "count": count,
        "text": text,
    }


def at(line, function="sample"):
    return Location(file="/w/train.py", line=line, function=function)


def test_the_cure_is_of_the_line_that_is_named():
    rows = [
        row(12, "chosen = random.sample(self.memory, size)", 50),
        row(30, "writer.add_histogram(name, p, step)", 90, "main"),
    ]
    seen = recording(process(stacks=rows))
    assert shape_at(seen, at(12)).id == "sample-of-a-deque"
    assert shape_at(seen, at(30, "main")).id == "histogram-logged"
    assert shape_at(seen, at(99, "other")) is None
    assert shape_at(seen, None) is None


def test_a_line_that_hardly_costs_anything_lends_no_cure_to_its_function():
    rows = [row(12, "copy.deepcopy(model)", 1), row(13, "loss = f(x)", 99)]
    assert shape_at(recording(process(stacks=rows)), at(13)) is None


def test_a_calls_share_is_its_part_of_the_time_that_the_clock_gives_its_phase():
    """By samples alone the archive took 60 % of a step that waited 90 % of its time for data."""
    opened = {**row(37, "with zipfile.ZipFile(self.path) as z:", 60, "read"), "phase": "loader"}
    learning = {**row(50, "loss.backward()", 40, "main"), "phase": "backward"}
    steps = {"mean_s": 0.01, "data_wait_s": 0.009, "backward_s": 0.001}
    (call,) = hot_calls(recording({"steps": steps, **process(stacks=[opened, learning])}))
    assert (call.function, call.location.line, round(call.share, 3)) == ("read", 37, 0.9)


def test_without_the_loops_own_samples_no_function_is_blamed():
    assert not hot_calls(recording(process(stacks=[row(12, "x = f(y)", 90)])))


def test_a_loop_whose_head_is_sampled_stands_for_the_lines_in_it(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "def __getitem__(self, index):\n"
        "    while len(chosen) < 8:\n"
        "        other = draw()\n"
        "        if other not in self.seen[user]:\n"
        "            chosen.append(other)\n"
        "    return torch.tensor([item, *chosen])\n"
    )

    def sampled(line, text, count):
        location = {"file": str(script), "line": line, "function": "__getitem__"}
        return {"location": location, "phase": "loader", "count": count, "text": text}

    rows = [
        sampled(2, "    while len(chosen) < 8:", 60),
        sampled(6, "    return torch.tensor([item, *chosen])", 40),
    ]
    seen = recording(process(stacks=rows))
    head = Location(file=str(script), line=2, function="__getitem__")
    assert shape_at(seen, head).id == "looked-up-in-a-list"
    script.unlink()
    assert shape_at(seen, head).id == "tensor-of-a-list-of-arrays"


def test_one_sample_of_many_at_the_loops_line_lends_it_no_cure():
    loop = row(30, "print(trainer.predict(data))", 200, "<module>")
    drawn = {**loop, "leaf_file": "data/sampler.py", "leaf_function": "__iter__"}
    few = recording(process(stacks=[loop, {**drawn, "count": 2}]))
    many = recording(process(stacks=[loop, {**drawn, "count": 300}]))
    assert shape_at(few, at(30, "<module>")) is None
    assert shape_at(many, at(30, "<module>")).id == "weights-drawn-over-millions"
