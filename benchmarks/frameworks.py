"""Does torchdoctor understand the frameworks that people train with?

    python benchmarks/frameworks.py FOLDER [--only skorch_net,keras_fit] [--command "run ..."]
    python benchmarks/frameworks.py FOLDER --watch [--only ...]
    python benchmarks/frameworks.py FOLDER --table > docs/frameworks.md

Each row installs a real framework in an environment of its own below FOLDER (torch, and all else
that this interpreter has, is shared), runs a short training as its users write it
(benchmarks/framework_scripts) to its end under torchdoctor, and compares the recording with what
the framework itself counted. In most scripts preparing a sample costs more than training with it,
so the bottleneck is known. It prints a line of JSON for each row and keeps it in FOLDER/rows. With
--watch the script runs under `torchdoctor watch`, and what that saw is added to its row.
FOLDER/clones must hold a clone of huggingface/pytorch-image-models, whose program runs unedited.
"""

from __future__ import annotations

import argparse
import json
import linecache
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from torchdoctor.advice import catalogue
from torchdoctor.edits.calls import loader_location
from torchdoctor.reports import trial_facts
from torchdoctor.schema import Location, Recording, Report
from torchdoctor.schema.record_files import read_recording, read_report
from torchdoctor.watch.recording import read_run

SCRIPTS = Path(__file__).resolve().parent / "framework_scripts"
TORCH = "torch==2.13.0"  # never replaced by what a framework asks for
FIXES = ("loader-workers", "mixed-precision", "torch-compile", "fused-optimizer")
COUNTED = re.compile(r"counted: (\d+) steps by (.+)")
_PHASES = ("data_wait_s", "h2d_copy_s", "forward_s", "backward_s", "optimizer_s", "other_s")
_DLRM = (  # without what it asks for: it names the variant for GPUs
    "torchrec==1.8.0 fbgemm-gpu-cpu==1.8.0 tensordict pyre-extensions typing-inspect "
    "mypy-extensions torchmetrics lightning-utilities tqdm pyvers orjson cloudpickle "
    "importlib_metadata zipp"
)
_HUGGING_FACE = "transformers accelerate trl datasets sentence-transformers"
_OFFLINE = {"HF_HUB_OFFLINE": "1"}
_HEAD = """# Frameworks

Written by `benchmarks/frameworks.py`: short trainings, and programs that infer, with the real
packages. Steps are those that torchdoctor saw, of those that the framework counted; the last one
may have no end. A step is a batch: with Accelerate two of them make an update, which it counts. Of
what infers it is a batch, or a call of what is named. In brackets: what is not as it should be.
What infers was watched, and part of it ran, on a machine that was busy with other programs.
"""


@dataclass(frozen=True, kw_only=True)
class Framework:
    """One row; `words` are what a fix's advice must contain where the framework owns the call."""

    name: str
    script: str  # in framework_scripts
    arguments: str = ""
    program: str = ""  # of a clone below FOLDER/clones, which the script runs; its first argument
    packages: str = ""  # for pip
    pip: str = ""  # further options of pip
    added: dict[str, str] = field(default_factory=dict)  # text at the end of installed files
    words: dict[str, str] = field(default_factory=dict)  # by fix
    loader: str = "DataLoader("  # in the line of the loader; "": the framework makes it
    bottleneck: str = "data_loader"  # planted; "": none
    environment: dict[str, str] = field(default_factory=dict)
    step: str = ""  # what separates the steps of a program that infers; "": it trains
    reason: str = ""  # why it cannot be run


TABLE = [
    Framework(name="plain torch", script="plain.py"),
    Framework(
        name="Hugging Face Trainer", script="transformers_trainer.py",
        packages=_HUGGING_FACE, loader="",
        words={
            "loader-workers": "TrainingArguments(..., dataloader_num_workers=",
            "mixed-precision": "TrainingArguments(..., bf16=True",
            "torch-compile": "TrainingArguments(..., torch_compile=True",
        },
    ),
    Framework(
        name="TRL SFTTrainer", script="trl_sft.py", packages=_HUGGING_FACE,
        words={"mixed-precision": "SFTConfig(..., bf16=True"}, bottleneck="", loader="",
    ),
    Framework(
        name="Accelerate", script="accelerate_loop.py", packages=_HUGGING_FACE,
        words={"mixed-precision": 'Accelerator(..., mixed_precision="bf16"'},
    ),
    Framework(
        name="Lightning Trainer", script="lightning_trainer.py", packages="lightning",
        words={"mixed-precision": 'Trainer(..., precision="bf16-mixed"'},
    ),
    Framework(
        name="Lightning Fabric", script="lightning_fabric.py", packages="lightning",
        words={"mixed-precision": 'Fabric(..., precision="bf16-mixed"'},
    ),
    Framework(name="Ignite", script="ignite_engine.py", packages="pytorch-ignite"),
    Framework(
        name="Keras", script="keras_fit.py", packages="keras",
        words={
            "mixed-precision": "keras.config.set_dtype_policy",
            "torch-compile": "model.compile(..., jit_compile=True",
        },
    ),
    Framework(
        name="skorch", script="skorch_net.py", packages="skorch", loader="",
        words={
            "loader-workers": "NeuralNet(..., iterator_train__num_workers=",
            "torch-compile": "NeuralNet(..., compile=True",
        },
    ),
    Framework(
        name="sentence-transformers", script="sentence_pairs.py",
        packages=_HUGGING_FACE, bottleneck="", loader="",
        words={"mixed-precision": "SentenceTransformerTrainingArguments(..., bf16=True"},
    ),
    Framework(name="torch_geometric", script="geometric.py", packages="torch_geometric"),
    Framework(name="Ray Train, two workers", script="ray_train.py", packages="ray[train]"),
    Framework(
        name="DeepSpeed", script="deepspeed_engine.py", packages="deepspeed",
        pip="--no-build-isolation", environment={"DS_ACCELERATOR": "cpu"},
        words={"mixed-precision": '"bf16": {"enabled": true}'},
    ),
    *(
        Framework(
            name=name, script=f"infer_{script}.py", packages=packages, step=step, bottleneck="",
            loader="",
        )
        for name, script, packages, step in (
            ("transformers, `pipeline`", "pipeline", _HUGGING_FACE, "entry"),
            ("transformers, `generate`", "generate", _HUGGING_FACE, "entry"),
            ("transformers, `Trainer.predict`", "trainer", _HUGGING_FACE, "loader"),
            ("sentence-transformers, `encode`", "encode", _HUGGING_FACE, "entry"),
            ("diffusers, a pipeline", "diffusers", f"{_HUGGING_FACE} diffusers", "entry"),
            ("openai-whisper, `transcribe`", "whisper", "openai-whisper", "entry"),
            ("torch_geometric, inference", "geometric", "torch_geometric", "loader"),
            ("TorchScript, saved and loaded", "scripted", "", "forward"),
        )
    ),
    *(
        Framework(
            name=f"Lightning, `Trainer.{name}`", script=f"infer_lightning_{name}.py",
            packages="lightning", step="loader", loader="DataLoader(",
            words={"mixed-precision": 'Trainer(..., precision="bf16-mixed"'},
        )
        for name in ("predict", "validate")
    ),
    Framework(
        name="timm, `validate.py` of aa4b5850", script="infer_timm.py",
        program="pytorch-image-models/validate.py", packages="timm torchvision",
        step="loader", loader="create_loader(", bottleneck="",
    ),
    Framework(
        name="ultralytics, `predict`, with an `nms` of ours for torchvision's",
        script="infer_ultralytics.py", packages="ultralytics torchvision opencv-python-headless",
        environment={"YOLO_OFFLINE": "true", "YOLO_CONFIG_DIR": tempfile.gettempdir()},
        step="entry", loader="", bottleneck="",
    ),
    Framework(
        name="TorchRec, inference of DLRM", script="infer_dlrm.py", packages=_DLRM,
        pip="--no-deps", bottleneck="", loader="", step="loader",
    ),
    Framework(
        name="vLLM, `LLM.generate`", script="infer_vllm.py",
        reason="not run: its wheel of 0.33.0 is for CUDA, and needs torch 2.14.0",
    ),
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Row:
    """What became of one framework; figures are of the first rank."""

    name: str
    versions: str = ""
    exit_code: int | None = None
    counted: int | None = None  # steps, by the framework
    steps: int | None = None  # by torchdoctor
    how: str = ""
    phases: float | None = None  # sum of the phases over the step's mean
    other: float | None = None  # share of the step in no phase
    loader: str = ""  # the line that the advice on the loader is about
    bottleneck: str = ""
    advice: dict[str, str] = field(default_factory=dict)  # by fix, as a run words it
    wrong: list[str] = field(default_factory=list)
    reason: str = ""  # why there is no report
    watched: int | None = None  # steps that `watch` saw
    watched_how: str = ""
    watched_wrong: list[str] = field(default_factory=list)


def environment(framework: Framework, folder: Path) -> Path:
    """Return the interpreter of an environment with the framework's packages, made if missing."""
    if not framework.packages:
        return Path(sys.executable)
    made = folder / "environments" / re.sub(r"\W+", "-", framework.packages)
    python = made / "bin" / "python"
    if (made / "installed").exists():
        return python
    venv.create(made, with_pip=True)
    own, shared = (sysconfig.get_path("purelib", vars=x) for x in ({"base": str(made)}, {}))
    Path(own, "shared.pth").write_text(f"import site; site.addsitedir({shared!r})\n")
    (folder / "constraints.txt").write_text(TORCH + "\n")
    subprocess.run(
        [
            python, "-m", "pip", "install", "--quiet", "-c", folder / "constraints.txt",
            *framework.pip.split(), *framework.packages.split(),
        ],
        check=True,
    )  # fmt: skip
    for name, text in framework.added.items():
        with Path(own, name).open("a") as file:
            file.write(text)
    (made / "installed").touch()
    return python


def command_of(framework: Framework, folder: Path) -> list[str | Path]:
    """Return the script and its arguments."""
    program = [folder / "clones" / framework.program] if framework.program else []
    return [framework.script, *program, *framework.arguments.split()]


def row_of(framework: Framework, folder: Path, command: list[str]) -> Row:
    """Run one framework; whatever goes wrong is said in the row."""
    if framework.reason:
        return Row(name=framework.name, reason=framework.reason)
    try:
        python = environment(framework, folder)
    except subprocess.CalledProcessError as error:
        return Row(name=framework.name, reason=f"not installed: pip ended with {error.returncode}")
    output = folder / "runs" / re.sub(r"\W+", "-", framework.name)
    shutil.rmtree(output, ignore_errors=True)
    ran = subprocess.run(
        [
            sys.executable, "-m", "torchdoctor.cli.front", *command, "--quiet", "--output", output,
            "--python", python, *command_of(framework, folder),
        ],
        cwd=SCRIPTS, env={**os.environ, **_OFFLINE, **framework.environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if not (output / "report.json").is_file():
        last = " ".join(ran.stderr.split())[-400:]
        return Row(name=framework.name, exit_code=ran.returncode, reason=last)
    printed = (output / "launches" / "001-observe" / "output.txt").read_text(errors="replace")
    report = read_report(output / "report.json")
    recording = read_recording(output / "recording.json")
    return judged(framework, report, recording, printed, ran.returncode)


def watched_row(row: Row, framework: Framework, folder: Path) -> Row:
    """Watch one framework, and return its row with what `watch` saw."""
    python = environment(framework, folder)
    output = folder / "watched" / re.sub(r"\W+", "-", framework.name)
    shutil.rmtree(output, ignore_errors=True)
    ran = subprocess.run(
        [
            sys.executable, "-m", "torchdoctor.cli.front", "watch", "--output", output,
            "--", python, *command_of(framework, folder),
        ],
        cwd=SCRIPTS, env={**os.environ, **_OFFLINE, **framework.environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    match = COUNTED.search(ran.stdout)
    counted = int(match[1]) if match else None
    logs = [log for log in read_run(output).processes if len(log.steps)]
    wrong = [f"exit code {ran.returncode}"] * bool(ran.returncode)
    if not logs:
        return replace(row, watched=0, watched_wrong=[*wrong, "no step"])
    process, steps = logs[0].process, int(logs[0].steps.step[-1])
    if counted is None or not counted - 1 <= steps <= counted:
        wrong.append(f"steps {steps} of {counted}")
    if process.probe_failed:
        wrong.append(process.probe_failed)
    where = process.location
    if framework.loader and framework.loader not in _line_at(where):
        wrong.append(f"loader {where and f'{Path(where.file).name}:{where.line}'}")
    return replace(
        row, counted=counted, versions=match[2] if match else row.versions, watched=steps,
        watched_how=process.steps_found, watched_wrong=wrong,
    )  # fmt: skip


def judged(
    framework: Framework, report: Report, recording: Recording, printed: str, exit_code: int
) -> Row:
    """Return the row that a run and the program's own output give."""
    match, steps = COUNTED.search(printed), recording.steps
    assert steps is not None
    counted = int(match[1]) if match else None
    phases = [getattr(steps, name) / steps.mean_s for name in _PHASES]
    advice = {fix: text for fix in FIXES if (text := _advice(fix, recording))}
    location = loader_location(recording)
    loader = "" if location is None else f"{Path(location.file).name}:{location.line}"
    found = report.diagnosis.bottleneck
    wrong = [
        f"{fix}: {advice.get(fix, 'no advice')}"
        for fix, words in framework.words.items()
        if words not in advice.get(fix, "")
    ]
    if not steps.program_ended:
        wrong.append("observed in part: on this machine the training takes longer than observing")
    # A step ends where the next one begins: the last one may have no end.
    elif counted is None or not counted - 1 <= steps.total_steps_seen <= counted:
        wrong.append(f"steps {steps.total_steps_seen} of {counted}")
    if framework.step != (steps.boundary.kind if steps.boundary.infers else ""):
        wrong.append(f"told by {steps.boundary.kind}, learned by {steps.boundary.learned_by}")
    if abs(sum(phases) - 1.0) > 0.02:
        wrong.append(f"phases sum to {sum(phases):.3f}")
    if framework.bottleneck and found != framework.bottleneck:
        wrong.append(f"bottleneck {found}")
    if framework.loader and framework.loader not in _line_at(location):
        wrong.append(f"loader {loader}")
    return Row(
        name=framework.name, versions=match[2] if match else "", exit_code=exit_code,
        counted=counted, steps=steps.total_steps_seen, how=steps.how_found, phases=sum(phases),
        other=phases[-1], loader=loader, bottleneck=f"{found}: {report.diagnosis.detail}",
        advice=advice, wrong=wrong,
    )  # fmt: skip


def _advice(ident: str, recording: Recording) -> str:
    """Return how the fix is worded for this program; a reason in brackets if it is refused."""
    fix = catalogue.fixes()[ident]
    if refusal := fix.refusal(recording):
        return f"({trial_facts.refusal(refusal, ident)})"
    settings = fix.settings(recording)
    return fix.instruction(settings[0], recording) if settings else ""


def _line_at(location: Location | None) -> str:
    return "" if location is None else linecache.getline(location.file, location.line)


def table(rows: list[Row]) -> str:
    """Return the page in Markdown."""
    lines = [_HEAD, "| framework | `run` | bottleneck | its own words | `watch` |"]
    lines.append("| --- " * 5 + "|")
    for row in rows:
        words = next((x.words for x in TABLE if x.name == row.name), {})
        given = [f"`{x}`" for fix, x in words.items() if x in row.advice.get(fix, "")]
        observed = row.reason or _told(row.steps, row.counted, row.wrong)
        watched = "-" if row.watched is None else _told(row.watched, row.counted, row.watched_wrong)
        cells = [
            f"{row.name} ({row.versions})" if row.versions else row.name,
            observed,
            row.bottleneck.split(":")[0] or "-",
        ]
        lines.append(f"| {' | '.join([*cells, '; '.join(given) or '-', watched])} |")
    return "\n".join(lines) + "\n"


def _told(steps: int | None, counted: int | None, wrong: list[str]) -> str:
    """Return the steps, and what else is wrong in brackets."""
    rest = [" ".join(x.split()) for x in wrong if not x.startswith("steps ")]
    rest = [x if len(x) < 90 else f"{x[:90]}..." for x in rest]
    return f"{steps} of {counted or 'unknown'}" + (f" ({'; '.join(rest)})" if rest else "")


def main() -> None:
    """Print a line of JSON for each row as it comes, then the table of all rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="for environments, runs and rows")
    parser.add_argument("--command", default="run --no-fixes --budget 90s", help="of torchdoctor")
    parser.add_argument("--only", help="names of scripts without .py, comma-separated")
    parser.add_argument("--watch", action="store_true", help="watch them, and add to their rows")
    parser.add_argument("--table", action="store_true", help="run nothing: print the kept rows")
    given = parser.parse_args()
    folder, rows = given.folder.resolve(), []
    (folder / "rows").mkdir(parents=True, exist_ok=True)
    for framework in TABLE:
        name = Path(framework.script).stem
        kept = folder / "rows" / f"{name}.json"
        if not given.table and (given.only is None or name in given.only.split(",")):
            if given.watch and not framework.reason:
                row = watched_row(Row(**json.loads(kept.read_text())), framework, folder)
            else:
                row = row_of(framework, folder, given.command.split())
            kept.write_text(json.dumps(asdict(row), indent=1))
            print(json.dumps(asdict(row)), flush=True)
        if kept.is_file():
            rows.append(Row(**json.loads(kept.read_text())))
    print(table(rows))


if __name__ == "__main__":
    main()
