"""Known functions of libraries by which programs infer, as real processes with small stand-ins.

A loop over `generate` was told by its tokens, a `pipeline` by the loaders that it makes anew.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from observed_programs import observe, recorder_of, recording_of, timed

from torchdoctor.launch.launch_spec import entry_points
from torchdoctor.observe.window import Window
from torchdoctor.probe import step_log
from torchdoctor.probe.hooks.entry_points import samples_of

SETUP = """
import torch
from torch import nn
from torch.utils.data import DataLoader
torch.manual_seed(0)
torch.set_num_threads(1)
ids = torch.ones(4, 6, dtype=torch.long)
class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 8)
    def forward(self, ids):
        return self.embedding(ids).sum(1)
"""
LIBRARIES = {
    "transformers/generation/utils.py": """
import torch
class GenerationMixin:
    config = generation_config = None
    def generate(self, ids, max_new_tokens=4):
        for _ in range(max_new_tokens):
            self(ids)
            ids = torch.cat([ids, ids[:, :1]], 1)
        return ids
""",
    "transformers/pipelines/base.py": """
from torch.utils.data import DataLoader
class Pipeline:
    def __call__(self, inputs):
        return [self.model(x) for x in DataLoader(inputs, batch_size=2)]
""",
    "transformers/trainer.py": """
from torch.utils.data import DataLoader
class Trainer:
    def predict(self, data):
        return [self.model(x) for x in DataLoader(data, batch_size=2)]
""",
    "lightning/pytorch/trainer/trainer.py": """
class Trainer:
    def predict(self, module, loader):
        return [module.predict_step(batch) for batch in loader]
""",
    "sentence_transformers/SentenceTransformer.py": """
class SentenceTransformer:
    def encode(self, texts):
        return [self.model(x) for x in texts]
""",
    "diffusers/pipelines/pipeline_utils.py": """
class DiffusionPipeline:
    pass
""",
    "vllm/entrypoints/llm.py": """
import time
from vllm.entrypoints.pooling.offline import PoolingOfflineMixin
class LLM(PoolingOfflineMixin):
    def generate(self, prompts):
        time.sleep(0.01)
        return list(prompts)
""",
    "vllm/entrypoints/pooling/offline.py": """
import time
class PoolingOfflineMixin:
    def embed(self, prompts):
        return self.encode(prompts)
    def encode(self, prompts):
        time.sleep(0.01)
        return list(prompts)
""",
}
GENERATES = """
from transformers.generation.utils import GenerationMixin
class Model(Words, GenerationMixin):
    pass
model = Model().eval()
"""

# name -> (program, kind of the boundary, iterations)
PROGRAMS = {
    "generate in a loop": (
        GENERATES + "for _ in range(40): model.generate(ids, max_new_tokens=5)",
        ("entry", 39),
    ),
    "batches of the program's own loader, given to generate": (
        GENERATES + "for x in DataLoader(torch.ones(160, 6).long(), 4): model.generate(x)",
        ("loader", 39),
    ),
    "one call that generates for long": (
        GENERATES + "model.generate(ids, max_new_tokens=40)",
        ("forward", 39),
    ),
    "a pipeline that makes a loader in each call": (
        """
from transformers.pipelines.base import Pipeline
class Classifies(Pipeline):
    model = Words().eval()
    def __call__(self, inputs):
        return super().__call__(list(inputs))
classify = Classifies()
for _ in range(40): classify(torch.ones(8, 6).long())
""",
        ("entry", 39),
    ),
    "one predict through a loader": (
        """
from transformers.trainer import Trainer
class Own(Trainer):
    model = Words().eval()
Own().predict(torch.ones(80, 6).long())
""",
        ("loader", 39),
    ),
    "one encode of everything": (
        """
from sentence_transformers.SentenceTransformer import SentenceTransformer
class Own(SentenceTransformer):
    model = Words().eval()
Own().encode([ids] * 40)
""",
        ("forward", 39),
    ),
    "a pipeline that is derived later": (
        """
from diffusers.pipelines.pipeline_utils import DiffusionPipeline
class Draws(DiffusionPipeline):
    model = Words().eval()
    def __call__(self, prompt):
        return [self.model(ids) for _ in range(3)]
draw = Draws()
for _ in range(40): draw("a cat")
""",
        ("entry", 39),
    ),
    "an engine whose models run elsewhere": (
        """
from vllm.entrypoints.llm import LLM
engine = LLM()
for _ in range(40): engine.generate(["a", "b"])
""",
        ("entry", 39),
    ),
    "an engine that inherits what it embeds with": (
        """
from vllm.entrypoints.llm import LLM
engine = LLM()
for _ in range(40): engine.embed(["a", "b"])
""",
        ("entry", 39),
    ),
    "an exported module": (
        """
exported = torch.export.export(nn.Sequential(nn.Linear(4, 4)).eval(), (torch.ones(2, 4),))
module = exported.module()
with torch.no_grad():
    for _ in range(40): module(torch.ones(2, 4))
""",
        ("forward", 39),
    ),
    "a saved and loaded scripted module": (
        """
torch.jit.script(nn.Sequential(nn.Linear(4, 4)).eval()).save("scripted.pt")
module = torch.jit.load("scripted.pt")
with torch.no_grad():
    for _ in range(40): module(torch.ones(2, 4))
""",
        ("forward", 39),
    ),
}


def written(folder: Path) -> str:
    """Write the stand-ins; return the line that lets a program find them."""
    for name, text in LIBRARIES.items():
        file = folder / "libraries" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        for package in file.relative_to(folder / "libraries").parents:
            (folder / "libraries" / package / "__init__.py").touch()
    return f"import sys\nsys.path.insert(0, {str(folder / 'libraries')!r})\n"


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_step_is_an_outermost_call_of_what_the_program_calls(name: str, tmp_path: Path) -> None:
    program, (kind, iterations) = PROGRAMS[name]
    recorder = recorder_of(written(tmp_path) + SETUP + program, tmp_path)
    seen = observe(recorder)
    assert seen.steps.boundary.infers
    assert seen.steps.boundary.kind == kind
    assert seen.steps.total_steps_seen >= iterations - 2
    timing = timed(recorder, seen, Window(warmup_steps=4, measure_steps=15, max_window_s=60.0))
    assert timing.ended == "measured" and len(timing.step_s) == 15


# What holds the model is never called as a whole.
LIGHTNING = """
from lightning.pytorch.trainer.trainer import Trainer
class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.net = nn.Linear(4, 4), Words()
    def predict_step(self, batch):
        return self.net(batch)
data = DataLoader(torch.ones(120, 6).long(), batch_size=4)
Trainer().predict(Module().eval(), data)
"""


@pytest.mark.slow
def test_batches_within_one_call_count_from_the_first_on(tmp_path: Path) -> None:
    recorder = recorder_of(written(tmp_path) + SETUP + LIGHTNING, tmp_path)
    seen = observe(recorder)
    assert seen.steps.boundary.kind == "loader"
    assert seen.steps.total_steps_seen >= 29
    assert max(model.forwards for model in recording_of(seen).main.models) == 30
    timing = timed(recorder, seen, Window(warmup_steps=4, measure_steps=24, max_window_s=60.0))
    assert timing.ended == "measured" and len(timing.step_s) == 24


@pytest.mark.slow
def test_prefill_decode_and_tokens_of_generate_are_told(tmp_path: Path) -> None:
    program = GENERATES + "for _ in range(40): model.generate(ids, max_new_tokens=5)"
    seen = observe(recorder_of(written(tmp_path) + SETUP + program, tmp_path))
    steps, calls = seen.steps, seen.steps.calls
    assert calls is not None and calls.samples_per_s is not None
    assert calls.prefill_s is not None and calls.decode_s is not None
    assert calls.samples_per_s * steps.mean_s == pytest.approx(4)
    assert calls.tokens_per_s == pytest.approx(4 * 5 / steps.mean_s, rel=0.02)
    assert calls.first_token_s is not None and calls.first_token_s < calls.latency_median_s
    assert calls.prefill_s + calls.decode_s <= steps.mean_s
    assert calls.latency_median_s <= calls.latency_p95_s
    assert seen.processes[0].entry_points[0].name == "generate"


@pytest.mark.slow
def test_padding_behind_the_end_of_a_row_is_no_token(tmp_path: Path) -> None:
    program = """
from types import SimpleNamespace
from transformers.generation.utils import GenerationMixin
class Model(Words, GenerationMixin):
    config = SimpleNamespace(is_encoder_decoder=False)
    generation_config = SimpleNamespace(pad_token_id=0, eos_token_id=2)
    def generate(self, ids):
        self(ids)
        made = torch.tensor([[5, 2, 0, 0], [5, 5, 5, 2]])
        return torch.cat([ids[:2], made], 1)
model = Model().eval()
for _ in range(40): model.generate(ids)
"""
    steps = observe(recorder_of(written(tmp_path) + SETUP + program, tmp_path)).steps
    assert steps.calls is not None
    assert steps.calls.tokens_per_s == pytest.approx(6 / steps.mean_s, rel=0.02)


@pytest.mark.slow
def test_a_training_that_generates_now_and_then_stays_a_training(tmp_path: Path) -> None:
    program = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for number, x in enumerate(DataLoader(torch.ones(160, 6).long(), 4)):
    model(x).sum().backward()
    optimizer.step()
    if number % 10 == 0:
        with torch.no_grad(): model.generate(x)
"""
    seen = observe(recorder_of(written(tmp_path) + SETUP + GENERATES + program, tmp_path))
    assert not seen.steps.boundary.infers and seen.steps.calls is None
    assert seen.steps.boundary.kind == "loader"


@pytest.mark.slow
def test_nothing_is_imported_that_the_program_does_not_import(tmp_path: Path) -> None:
    program = """
model = Words().eval()
for _ in range(40): model(ids)
print(sorted(name for name in sys.modules if name.split(".")[0] in
      ("transformers", "diffusers", "vllm", "sentence_transformers")), file=open("seen.txt", "w"))
"""
    observe(recorder_of(written(tmp_path) + SETUP + program, tmp_path))
    [seen] = tmp_path.rglob("seen.txt")
    assert seen.read_text() == "[]\n"


def test_samples_are_those_of_the_first_argument() -> None:
    rows, image = np.zeros((4, 6)), np.zeros((320, 320, 3))
    tensor = SimpleNamespace(shape=(4, 6), layout="strided")
    assert samples_of((tensor,), {}) == 4
    assert samples_of((), {"input_ids": tensor}) == samples_of(({"input_ids": tensor},), {}) == 4
    assert samples_of((["a", "b"],), {}) == 2 and samples_of(("a text",), {}) == 1
    assert samples_of((rows,), {}) == samples_of((), {}) == step_log.UNKNOWN_SIZE
    assert samples_of((image,), {}, images=True) == 1
    assert samples_of((np.zeros((8, 3, 32, 32)),), {}, images=True) == 8
    assert samples_of(("films/",), {}, images=True) == step_log.UNKNOWN_SIZE


def test_each_known_function_has_a_source_and_is_named_once() -> None:
    entries = entry_points()
    named = [(name, x["class"], x["method"]) for x in entries for name in x["modules"]]
    assert len(set(named)) == len(named)
    for entry in entries:
        assert entry["source"].startswith("https://")
        assert entry["samples"] in ("rows", "images", "one")
