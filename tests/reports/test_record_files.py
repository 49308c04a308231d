"""Files survive what happens to files: other versions, damage, crashes, figures that are none."""

import dataclasses
import json
import math
import os
import stat
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy
import pytest
from record_schema import SCHEMAS, report_page
from samples import CPU_MACHINE, SAMPLES, between, loader_bound

from torchdoctor import schema as records
from torchdoctor.cli.outputs import check_written
from torchdoctor.launch.run_folder import new_run_folder
from torchdoctor.reports.formats import FORMATS, rendered, write_page
from torchdoctor.reports.summary import summarized
from torchdoctor.schema import (
    BRANCHES,
    Evidence,
    FixSet,
    ProcessFacts,
    Recording,
    Report,
    Throttling,
    Workload,
    message,
)
from torchdoctor.schema.errors import UsageError
from torchdoctor.schema.record_files import (
    decode_report,
    encode,
    read_recording,
    read_report,
    write_record,
    write_recording,
    write_text,
)
from torchdoctor.schema.trials import LossComparison, TrainingTrial

DOCS = Path(__file__).parents[2] / "docs"


def outline(report: Report) -> dict:
    return json.loads(encode(report))


def changed(**fields: object) -> str:
    return json.dumps({**outline(loader_bound()), **fields})


NUMBER = "1" * 5000  # of more digits than Python takes for a number
REJECTED = {"rejected_patches": [{"detail": "x", "fixes": None}]}


def test_a_report_is_read_back_equal(tmp_path: Path) -> None:
    write_record(loader_bound(), tmp_path / "report.json")
    assert read_report(tmp_path / "report.json") == loader_bound()
    assert read_report(tmp_path) == loader_bound()  # a run folder


def test_a_recording_is_read_back_equal(tmp_path: Path) -> None:
    recording = Recording(
        workload=Workload(command=["train.py"], cwd="/x"), environment=CPU_MACHINE
    )
    write_recording(recording, tmp_path / "recording.json")
    assert read_recording(tmp_path / "recording.json") == recording
    with pytest.raises(UsageError, match="holds a recording"):
        read_report(tmp_path / "recording.json")


def test_a_recording_whose_doubts_were_sentences_is_read(tmp_path: Path) -> None:
    path = tmp_path / "recording.json"
    workload = Workload(command=["train.py"], cwd="/x")
    write_recording(Recording(workload=workload, environment=CPU_MACHINE), path)
    stored = json.loads(path.read_text())
    doubt, remark = "It was short.", "A cell is missing."
    stored["recording"]["doubts"] = [doubt]
    stored["recording"]["workload"]["remark"] = remark
    path.write_text(json.dumps(stored))
    recording = read_recording(path)
    assert recording.doubts == [Evidence(fact="said", sentence=doubt)]
    assert recording.workload.remark == Evidence(fact="said", sentence=remark)


def test_a_recording_whose_processes_gave_reasons_in_words_is_read(tmp_path: Path) -> None:
    process = {
        "sample_check": {"loader": 0, "same": False, "reason": "It is random."},
        "loaders": [{"ident": 0, "no_second": "It is not forked."}],
        "fixes": [
            {"fix": "tf32", "state": "refused", "reason": "No GPU."},
            {"fix": "adamw", "state": "applied", "reason": None},
        ],
    }
    facts = _read_process(tmp_path, process)
    assert facts.sample_check is not None
    assert facts.sample_check.why == message("It is random.")
    assert facts.loaders[0].no_second == message("It is not forked.")
    assert [applied.why for applied in facts.fixes] == [message("No GPU."), None]


def test_a_recording_whose_batches_were_texts_is_read(tmp_path: Path) -> None:
    """`report` and `patch` of a stored run would know no batch of it."""
    process = {
        "loaders": [
            {
                "ident": 0,
                "batch_shapes": ["32x3x64x64 float32, 32 int64"],
                "sample_fingerprints": ["1a:2b", "3c:-"],
            }
        ],
        "models": [{"ident": 0, "input_shapes": ["8x3 bfloat16", "4x3 bool", "s0x3 float32"]}],
    }
    main = _read_process(tmp_path, process)
    assert main.loaders[0].input_hashes == ["1a", "3c"]
    assert main.loaders[0].label_hashes == ["2b", None]
    [images, labels] = main.loaders[0].batch_tensors[0]
    assert (images.sizes, images.dtype, images.total_bytes) == (
        [32, 3, 64, 64],
        "float32",
        2**19 * 3,
    )
    assert (labels.sizes, labels.dtype, labels.total_bytes) == ([32], "int64", 256)
    rows = [[tensor.total_bytes for tensor in call] for call in main.models[0].input_tensors]
    assert rows == [[48], [12], []]


def test_a_recording_whose_uneven_sizes_were_texts_is_read(tmp_path: Path) -> None:
    """The code for such a layer would be missing from the report of a stored run."""
    product = {
        "operator": "aten::mm",
        "sizes": "[512, 128], [128, 1001]",
        "padded": ["output channels 1001 -> 1008"],
        "precision": "float32",
        "device": "cpu",
        "calls_per_step": 3.0,
        "alone_s": 0.001,
    }
    layers = ["head.0: Linear 768 -> 50257"]
    process = {"models": [{"ident": 0, "odd_sizes": layers}], "padded_products": [product]}
    main = _read_process(tmp_path, process)
    [layer] = main.models[0].uneven_linears
    assert (layer.name, layer.inputs, layer.outputs) == ("head.0", 768, 50257)
    [size] = main.padded_products[0].padded_sizes
    assert (size.dimension, size.size, size.padded) == ("output channels", 1001, 1008)


def test_hooks_of_a_recording_of_before_keep_their_model(tmp_path: Path) -> None:
    """The name of the method and that of the model were one."""
    list_row = {"name": "a of b", "kind": "list"}
    hooks_row = {"name": "register_forward_hook of Net", "kind": "hooks"}
    [grown_list, hooks] = _read_process(
        tmp_path, {"grown_objects": [list_row, hooks_row]}
    ).grown_objects
    assert (grown_list.name, grown_list.model) == ("a of b", None)
    assert (hooks.name, hooks.model) == ("register_forward_hook", "Net")


def test_samples_of_a_recording_of_before_keep_their_innermost_frame(tmp_path: Path) -> None:
    sample = {
        "location": {"file": "/x/my train.py", "line": 3, "function": "main"},
        "phase": "other",
        "count": 9,
        "leaf": "x/my train.py main",
    }
    [row] = _read_process(tmp_path, {"stacks": [sample]}).stacks
    assert (row.leaf_file, row.leaf_function) == ("x/my train.py", "main")


def _read_process(folder: Path, process: dict[str, Any]) -> ProcessFacts:
    """Return what is read of a stored recording with these fields of its process."""
    path = folder / "recording.json"
    workload = Workload(command=["train.py"], cwd="/x")
    write_recording(Recording(workload=workload, environment=CPU_MACHINE), path)
    stored = json.loads(path.read_text())
    stored["recording"]["processes"] = [{"pid": 1, **process}]
    path.write_text(json.dumps(stored))
    return read_recording(path).main


def test_fields_of_a_later_minor_version_are_passed_over() -> None:
    assert decode_report(changed(schema_version="2.9", novelty={"a": 1})).doubts


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (changed(schema_version="3.0"), "newer torchdoctor"),
        (changed(schema_version="x"), "no schema version"),
        (changed(trials=[{"fixes": 3}]), "damaged"),
        (changed(diagnosis={"bottleneck": "cpu", "findings": [{"evidence": 3}]}), "damaged"),
        (changed()[:-40], "damaged"),
        (changed(schema_version="2.0", recommendation=REJECTED), "damaged"),
        (changed(schema_version="2.0", no_trials_reason=f"--budget {NUMBER}s would do"), "damaged"),
        (changed(schema_version=f"{NUMBER}.0"), "no schema version"),
        (changed(schema_version="\u00b2.0"), "no schema version"),
        (changed(schema_version=f"2.{NUMBER}"), "damaged"),
        ('{"traceEvents": []}', "torchdoctor diagnose"),
        ("[1]", "not a file that torchdoctor wrote"),
        ("{}", "not a torchdoctor report"),
        ('{"schema_version": "1.0", "diagnosis": {}}', "it lacks baseline"),
        ("", "empty"),
        (b"\xff\xfe\x00", "damaged"),
    ],
)
def test_what_is_no_report_is_said_in_one_sentence(data, words) -> None:
    with pytest.raises(UsageError, match=words):
        decode_report(data, "a.json")


@pytest.mark.parametrize(
    ("where", "value"),
    [("step_time_s.mean", 0), ("step_time_s.median", 1e308), ("speedup.low", -1.0),
     ("speedup.low", 9.0), ("speedup.estimate", 0), ("speedup.estimate", 9.0),
     ("speedup.high", 1e300), ("peak_memory_bytes", 1e300)],
)  # fmt: skip
def test_a_figure_that_nobody_measured_is_said(where, value) -> None:
    outline = json.loads(encode(SAMPLES["loader_bound"]()))
    part, _, name = where.rpartition(".")
    outer = outline["baseline"] if part != "speedup" else outline["recommendation"]
    (outer[part] if part else outer)[name] = value
    with pytest.raises(UsageError, match=f"is damaged: .*{part}.* cannot be"):
        decode_report(json.dumps(outline))


def test_a_loss_that_falls_further_with_a_fix_is_read_back() -> None:
    """The difference of losses has an interval too, which may lie below 0."""
    lower = LossComparison(steps=9, pairs=2, difference=-0.2, low=-0.3, high=-0.1)
    trial = TrainingTrial(fix="amp", verdict="better", sentence="Lower.", comparison=lower)
    report = dataclasses.replace(loader_bound(), training_trials=[trial])
    assert decode_report(encode(report)) == report


@pytest.mark.parametrize("format", FORMATS)
def test_a_nul_in_a_path_breaks_no_format(format) -> None:
    outline = json.loads(encode(SAMPLES["loader_bound"]()))
    outline["run_folder"] = outline["workload"]["cwd"] = "/a\0b"
    assert rendered(decode_report(json.dumps(outline)), format)


def test_no_nan_and_no_infinity_reach_the_file() -> None:
    whole = loader_bound()
    nan = dataclasses.replace(
        whole.trials[0], speedup=between(1.5, 0.1, math.inf), fixes=FixSet.of("a", {"x": math.nan})
    )
    report = dataclasses.replace(
        whole,
        trials=[nan],
        baseline=dataclasses.replace(whole.baseline, launches_s=[1.0, math.nan, 2.0]),
    )
    data = encode(report)
    assert b"NaN" not in data
    assert b"Infinity" not in data
    read = decode_report(data)
    assert read.trials[0].speedup is None
    assert read.trials[0].fixes == {"a": {"x": None}}
    assert read.baseline.launches_s == [1.0, 2.0]


def test_numpy_values_in_settings_become_plain_numbers() -> None:
    settings = {"n": numpy.int64(4), "x": numpy.float32(0.5), "list": numpy.arange(2)}
    trial = dataclasses.replace(loader_bound().trials[0], fixes=FixSet.of("a", settings))
    read = decode_report(encode(dataclasses.replace(loader_bound(), trials=[trial])))
    assert read.trials[0].fixes["a"] == {"n": 4, "x": 0.5, "list": [0, 1]}


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "report.json"
    path.write_text("old", encoding="utf-8")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UsageError, match="No space left on device"):
        write_record(loader_bound(), path)
    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_report_is_an_ordinary_file_and_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.json"
    write_record(loader_bound(), path)
    (tmp_path / "plain").touch()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)
    path.chmod(0o640)
    write_record(loader_bound(), path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_the_names_of_the_contract_are_there() -> None:
    report = outline(loader_bound())
    assert set(report["baseline"]["step_time_s"]) >= {"median", "p10", "p90", "steps"}
    shares = ["gpu", "memcpy", "memset", "communication", "runtime", "data_loader", "cpu", "other"]
    assert list(report["baseline"]["shares"]) == shares
    assert set(report["ceilings"]) == set(BRANCHES)
    names = {
        "environment": {"torch", "python", "cpu", "gpus", "driver", "container"},
        "diagnosis": {"bottleneck", "detail", "path", "findings"},
        "recommendation": {"fixes", "speedup"},
    }
    for part, expected in names.items():
        assert set(report[part]) >= expected
    path = {"question", "answer", "metric", "value", "threshold", "source"}
    assert set(report["diagnosis"]["path"][0]) >= path
    finding = {"check", "share_of_step", "evidence", "location"}
    assert set(report["diagnosis"]["findings"][0]) >= finding
    trial = {"fixes", "speedup", "verdict", "numerics", "risk"}
    assert set(report["trials"][0]) >= trial | {"peak_memory_bytes", "cost_s", "reason"}
    assert set(report) >= {"schema_version", "workload", "noise_floor", "overhead"}


def test_every_field_that_is_written_is_described() -> None:
    for whole in (schema() for schema in SCHEMAS.values()):
        for kind, definition in whole["$defs"].items():
            record = next(
                getattr(module, kind)
                for module in (records, records.gate, records.comparison, records.summary)
                if hasattr(module, kind)
            )
            names = [field.name for field in dataclasses.fields(record)]
            assert names == list(definition["properties"]) == definition["required"], kind
            assert all(field["description"] for field in definition["properties"].values()), kind


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_schemas_in_docs_are_current(name: str) -> None:
    stored = json.loads((DOCS / f"{name}.schema.json").read_text(encoding="utf-8"))
    assert stored == SCHEMAS[name]()


def test_the_page_in_docs_is_current() -> None:
    assert (DOCS / "report.md").read_text(encoding="utf-8") == report_page(
        (DOCS / "report.example.json").read_text(encoding="utf-8")
    )
    assert (DOCS / "report.example.json").read_bytes() == encode(summarized(loader_bound()))


def test_a_report_is_rendered_without_torch() -> None:
    code = "import sys, torchdoctor.reports.formats; print('torch' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "False"


def test_a_file_is_written_beside_no_name_that_others_foresee(tmp_path: Path) -> None:
    """A link of the temporary's name, put into a shared folder, led the text to its target."""
    victim, report = tmp_path / "victim", tmp_path / "report.html"
    victim.write_text("kept")
    for number in range(os.getpid() - 2, os.getpid() + 3):
        (tmp_path / f".report.html.{number}.tmp").symlink_to(victim)
    there = set(tmp_path.iterdir())
    write_text("new", report)
    assert (victim.read_text(), report.read_text()) == ("kept", "new")
    assert set(tmp_path.iterdir()) == {*there, report}
    write_text("long", tmp_path / ("x" * 250))  # a name with no room for a longer one beside it


def test_mode_and_attributes_of_a_replaced_file_stay(tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    report.write_text("old")
    report.chmod(0o664)
    try:
        os.setxattr(report, "user.note", b"mine")
    except (OSError, AttributeError):
        pytest.skip("no extended attributes here")
    write_text("new", report)
    assert os.getxattr(report, "user.note") == b"mine"
    assert (report.read_text(), report.stat().st_mode & 0o7777) == ("new", 0o664)


def test_a_link_in_a_run_folder_from_elsewhere_is_not_written_through(tmp_path: Path) -> None:
    run, victim = tmp_path / "run", tmp_path / "victim"
    run.mkdir()
    victim.write_text("kept")
    (run / "report.html").symlink_to(victim)
    write_page(dataclasses.replace(loader_bound(), run_folder=str(run)))
    assert victim.read_text() == "kept"
    with pytest.raises(UsageError):
        write_text("page", run / "report.html", through_link=False)
    link = tmp_path / "link.html"  # the user's own
    link.symlink_to(victim)
    write_text("page", link)
    assert link.is_symlink() and victim.read_text() == "page"


def test_links_in_a_project_lead_no_file_of_ours_elsewhere(tmp_path: Path) -> None:
    """`.gitignore` of the runs, and the empty file that tries a folder, went through links."""
    victim, runs = tmp_path / "victim", tmp_path / "torchdoctor-runs"
    victim.write_text("kept")
    runs.mkdir()
    (runs / ".gitignore").symlink_to(victim)
    folder = new_run_folder(None, str(tmp_path), datetime.now())
    assert folder.parent == runs and victim.read_text() == "kept"
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / ".torchdoctor-writable").symlink_to(victim)
    check_written({}, tensorboard=logs)
    assert victim.read_text() == "kept"


def test_reasons_of_throttling_that_were_stored_as_words_are_read_as_data() -> None:
    outline = json.loads(encode(loader_bound()))
    outline["sensors"]["gpu_throttle"] = ["power cap 35 %"]
    read = decode_report(json.dumps(outline))
    assert read.sensors.gpu_throttle == [Throttling(reason="power cap", share=0.35)]
