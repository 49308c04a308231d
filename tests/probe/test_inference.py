"""Programs that infer, as real processes: their calls are steps, and what they waste is seen.

A program that only calls models got no diagnosis at all, or one of a training that it is not.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from observed_programs import observe, recorder_of, recording_of, timed

from torchdoctor.advice import catalogue
from torchdoctor.advice.diagnosis import overlapping_calls
from torchdoctor.observe.window import Window

pytestmark = pytest.mark.slow

SETUP = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
data = torch.randn(64, 4)
loader = DataLoader(TensorDataset(data), batch_size=4)
"""
TOKENS = """
class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 8)
    def forward(self, ids):
        return self.embedding(ids).sum(1)
model = Words().eval()
"""

# name -> (loop, kind of the boundary, iterations)
PROGRAMS = {
    "a plain loop": (
        """
model.eval()
with torch.no_grad():
    for _ in range(40): model(data)
""",
        ("forward", 39),
    ),
    "a plain loop that forgets both": ("for _ in range(40): model(data)", ("forward", 39)),
    "batches of a loader": (
        """
for _ in range(3):
    for (x,) in loader: model(x)
""",
        ("loader", 47),
    ),
    "an encoder and a head in turn": (
        """
encoder, head = nn.Linear(4, 4), nn.Linear(4, 2)
with torch.inference_mode():
    for _ in range(40): head(encoder(data))
""",
        ("forward", 39),
    ),
    "a module called by its part": (
        """
for _ in range(40): model[0](data)
""",
        ("forward", 39),
    ),
    "parts of a model that is never called as a whole": (
        """
class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.blocks = nn.Embedding(9, 4), nn.ModuleList([nn.Linear(4, 4)])
        self.head = nn.Linear(4, 2)
    def encode_words(self, ids):
        x = self.words(ids)
        for block in self.blocks: x = block(x)
        return self.head(x)
pair = Pair().eval()
with torch.no_grad():
    for _ in range(40): pair.encode_words(torch.ones(3, 2, dtype=torch.long))
""",
        ("forward", 35),
    ),
    "a model of another class that is made after a call": (
        """
class Later(nn.Linear): pass
with torch.no_grad():
    for _ in range(9): model.eval()(data)
    later = Later(4, 2)
    for _ in range(40): later(data)
""",
        ("forward", 38),
    ),
    "a model made for each request": (
        """
for _ in range(40):
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1)).eval()
    model(data)
""",
        ("forward", 38),
    ),
    "a scripted module": (
        """
scripted = torch.jit.script(model.eval())
with torch.no_grad():
    for _ in range(40): scripted(data)
""",
        ("forward", 39),
    ),
    "named steps": (
        """
import torchdoctor
for _ in range(40):
    model(data)
    torchdoctor.step()
""",
        ("explicit", 39),
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_calls_of_models_are_the_steps_of_a_program_that_infers(name: str, tmp_path: Path) -> None:
    loop, (kind, iterations) = PROGRAMS[name]
    recorder = recorder_of(SETUP + loop, tmp_path)
    seen = observe(recorder)
    assert seen.steps.boundary.infers
    assert seen.steps.boundary.kind == kind
    assert seen.steps.total_steps_seen >= iterations - 1
    assert seen.steps.forward_s > 0
    timing = timed(recorder, seen, Window(warmup_steps=4, measure_steps=20, max_window_s=60.0))
    assert timing.ended == "measured" and len(timing.step_s) == 20
    assert len([x for x in timing.losses if x is not None]) >= 20  # figures of outputs
    # Outputs of one number decide nothing.
    decides = (
        "an encoder and a head in turn",
        "a module called by its part",
        "parts of a model that is never called as a whole",
        "a model of another class that is made after a call",
    )
    assert bool(timing.decisions) == (name in decides)


# "Pending" numbers that nobody takes make the next operator of an export fail.
STANDS_FOR_NUMBERS = """
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
model = nn.Sequential(model, nn.Linear(8, 3)).eval()
ids = torch.ones(4, 16, dtype=torch.long)
numbers = ShapeEnv()
mode = FakeTensorMode(shape_env=numbers, allow_non_fake_inputs=True)
stand_in = mode.from_tensor(ids, static_shapes=True)
with torch.no_grad():
    for _ in range(20):
        model(ids)
        model(stand_in)
        assert not numbers.pending_fresh_unbacked_symbols
"""


def test_numbers_that_are_only_stood_for_are_not_asked_for(tmp_path: Path) -> None:
    recorder = recorder_of(SETUP + TOKENS + STANDS_FOR_NUMBERS, tmp_path)
    seen = observe(recorder)
    assert seen.steps.boundary.kind == "forward"
    [model] = [model for model in recording_of(seen).main.models if model.forwards]
    assert model.padding_share is not None
    timing = timed(recorder, seen, Window(warmup_steps=4, measure_steps=20, max_window_s=60.0))
    assert timing.ended == "measured"
    assert timing.decisions


def test_all_parts_of_a_model_that_is_never_called_as_a_whole_compute(tmp_path: Path) -> None:
    """Only the first part counted: the others were work "outside of computation"."""
    loop = PROGRAMS["parts of a model that is never called as a whole"][0]
    seen = recording_of(observe(recorder_of(SETUP + loop, tmp_path)))
    called = {model.cls.rpartition(".")[2] for model in seen.main.models if model.forwards}
    assert called == {"Embedding", "Linear"}
    assert len([model for model in seen.main.models if model.forwards]) == 3


def test_a_training_that_begins_with_an_evaluation_stays_a_training(tmp_path: Path) -> None:
    loop = """
model.eval()
with torch.no_grad():
    for _ in range(200): model(data)
model.train()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(3):
    for (x,) in loader:
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
    seen = observe(recorder_of(SETUP + loop, tmp_path))
    assert not seen.steps.boundary.infers
    assert seen.steps.boundary.kind == "loader"
    assert seen.steps.backwards_per_step == 1.0


def findings_of(source: str, folder: Path) -> set[str]:
    recording = recording_of(observe(recorder_of(SETUP + source, folder)))
    checks = catalogue.checks()
    asked = (
        *("training-mode-left-on", "inference-with-gradients", "padded-tokens"),
        *("decoding-without-cache", "model-made-anew", "half-on-cpu"),
    )
    return {name for name in asked if checks[name].findings(recording)}


def test_training_mode_and_graphs_are_seen(tmp_path: Path) -> None:
    found = findings_of("for _ in range(40): model(data)", tmp_path)
    assert found == {"training-mode-left-on", "inference-with-gradients"}


def test_padding_at_the_end_of_all_rows_is_seen(tmp_path: Path) -> None:
    loop = """
with torch.no_grad():
    for i in range(40):
        ids = torch.zeros(4, 64, dtype=torch.long)
        ids[:, : 8 + i % 3] = 7
        model(ids)
"""
    recording = recording_of(observe(recorder_of(SETUP + TOKENS + loop, tmp_path)))
    [finding] = catalogue.checks()["padded-tokens"].findings(recording)
    assert finding.location is not None
    [filled] = [fact for fact in finding.evidence if fact.location]
    assert filled.location and filled.location.line == finding.location.line - 2
    assert filled.values["text"] in loop and "torch.zeros(" in filled.values["text"]


def test_padding_of_a_training_is_seen(tmp_path: Path) -> None:
    loop = """
model.train()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(40):
    ids = torch.zeros(4, 64, dtype=torch.long)
    ids[:, : 8 + i % 3] = 7
    model(ids).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    assert findings_of(TOKENS + loop, tmp_path) == {"padded-tokens"}


def test_padding_of_a_training_is_looked_for_in_its_first_steps_alone(tmp_path: Path) -> None:
    loop = """
model.train()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(100):
    ids = torch.zeros(4, 64, dtype=torch.long)
    ids[:, : 16 if i < 20 else 64] = 7
    model(ids).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    recording = recording_of(observe(recorder_of(SETUP + TOKENS + loop, tmp_path)))
    assert [model.padding_share for model in recording.main.models if model.forwards] == [0.75]


def test_decoding_the_whole_sequence_again_is_seen(tmp_path: Path) -> None:
    loop = """
with torch.no_grad():
    for _ in range(3):
        ids = torch.randint(1, 50, (1, 8))
        for _ in range(16):
            word = model(ids).argmax(-1, keepdim=True).clamp(1)
            ids = torch.cat([ids, word], 1)
"""
    assert findings_of(TOKENS + loop, tmp_path) == {"decoding-without-cache"}


def test_a_model_made_for_each_request_is_seen(tmp_path: Path) -> None:
    loop = """
with torch.no_grad():
    for _ in range(40):
        model = nn.Linear(4, 1).eval()
        model(data)
"""
    assert findings_of(loop, tmp_path) == {"model-made-anew"}


THREADS = """
import threading
from concurrent.futures import ThreadPoolExecutor
import torch
both = threading.Barrier(2)
class Model(torch.nn.Linear):
    def forward(self, x):
        both.wait()
        return super().forward(x)
model, x = Model(4, 4).eval(), torch.ones(8, 4)
def answer(_):
    with torch.no_grad():
        return model(x)
with ThreadPoolExecutor(2) as pool:
    list(pool.map(answer, range(400)))
"""


def test_calls_of_other_threads_that_overlap_are_counted(tmp_path: Path) -> None:
    """Half of them were missing, and nothing said so."""
    seen = observe(recorder_of(THREADS, tmp_path))
    (model,) = seen.processes[0].models
    assert model.overlapping_forwards > 100
    assert 380 <= model.forwards + model.overlapping_forwards <= 400
    assert overlapping_calls(recording_of(seen)) == model.overlapping_forwards
