"""Recommended fixes as one patch of the user's source: made, printed, applied, measured."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import commands
import pytest
from slow_loader import SLOW_LOADER
from written_code import calls, keywords

from torchdoctor.advice import catalogue
from torchdoctor.advice.wording import source_patch
from torchdoctor.launch.sandbox import Command, Sandbox
from torchdoctor.reports.formats import rendered
from torchdoctor.reports.handed_out import proof, remarks, remarks_on
from torchdoctor.runs.offered_fixes import as_code
from torchdoctor.schema import (
    Boundary,
    Diagnosis,
    Environment,
    FixSet,
    Interval,
    LoaderFacts,
    Location,
    OptimizerFacts,
    PatchTrial,
    ProcessFacts,
    Recommendation,
    RecommendedFix,
    Recording,
    Report,
    StepStatistics,
    Trial,
    Workload,
    WorkloadRecord,
    figures,
)
from torchdoctor.schema.record_files import read_report, write_record, write_recording

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

import public_patches  # noqa: E402

SCRIPT = '''"""Train."""
import torch
from torch.utils.data import DataLoader  # the loader

if __name__ == "__main__":
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)  # small steps
    loader = DataLoader(
        list(range(100)),
        batch_size=4,
    )
'''
FIXES = [
    ("loader-workers", {"num_workers": 2}),
    ("persistent-workers", {}),
    ("fused-optimizer", {"fused": True}),
    ("cpu-threads", {"num_threads": 1}),
]


def recording(folder: Path, text: str = SCRIPT) -> Recording:
    script = folder / "train.py"
    script.write_bytes(text.encode())
    line = text[: text.index("DataLoader(")].count("\n") + 1
    adam = text[: text.index("Adam(")].count("\n") + 1
    process = ProcessFacts(
        pid=1,
        loaders=[
            LoaderFacts(
                ident=0,
                cls="torch.utils.data.dataloader.DataLoader",
                location=Location(file=str(script), line=line),
                batches=30,
            )
        ],
        optimizers=[
            OptimizerFacts(
                ident=0,
                cls="torch.optim.Adam",
                steps=30,
                supports_fused=True,
                location=Location(file=str(script), line=adam),
            )
        ],
    )
    steps = StepStatistics(
        boundary=Boundary(kind="loader"),
        steps=30,
        warmup_steps=10,
        median_s=0.1,
        mean_s=0.1,
        p10_s=0.1,
        p90_s=0.1,
    )
    return Recording(
        workload=Workload(command=["train.py"], cwd=str(folder), script=str(script)),
        environment=Environment(sandbox="overlay"),
        processes=[process],
        steps=steps,
    )


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("foreach=True", "Adam(model.parameters(), lr=0.01, fused=True)"),
        ("foreach=True, fused=False", "Adam(model.parameters(), lr=0.01, fused=True)"),
        ("foreach=None", "Adam(model.parameters(), lr=0.01, fused=True)"),
        ("foreach=args.foreach", None),
        ("foreach=not torch.cuda.is_available()", None),
        ("**options", None),
    ],
)
def test_an_optimizer_is_never_asked_for_two_implementations(
    given: str, wanted: str | None, tmp_path: Path
) -> None:
    """torch refuses `foreach` and `fused` at once: the patched program would end there."""
    seen = recording(tmp_path, SCRIPT.replace("lr=0.01", f"lr=0.01, {given}"))
    made = source_patch(FixSet.of("fused-optimizer", {"fused": True}), seen, catalogue.fixes())
    assert (made is None) == (wanted is None)
    assert wanted is None or wanted in (made.diff if made is not None else "")


def apply(folder: Path, diff: str, *more: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        ["git", "apply", *more, "-"], input=diff.encode(), cwd=folder, check=False,
        capture_output=True,
    )  # fmt: skip


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_several_fixes_are_one_patch_that_git_applies(ends: str, tmp_path: Path) -> None:
    seen = recording(tmp_path, SCRIPT.replace("\n", ends))
    made = source_patch(FixSet(FIXES), seen, catalogue.fixes())
    assert made is not None
    assert made.left_out == []
    result = apply(tmp_path, made.diff)
    assert result.returncode == 0, result.stderr
    text = (tmp_path / "train.py").read_bytes().decode()
    assert text == made.texts[str(tmp_path / "train.py")]
    loader = keywords(text, "DataLoader")
    assert (loader["num_workers"], loader["persistent_workers"]) == ("2", "True")
    [adam] = [line for line in text.splitlines() if "Adam(" in line]
    assert keywords(text, "Adam")["fused"] == "True" and adam.endswith("# small steps")
    assert calls(text, "set_num_threads") == ["torch.set_num_threads(1)"]
    # What was changed once is not changed again.
    again = recording(tmp_path, text)
    assert source_patch(FixSet(FIXES), again, catalogue.fixes()) is None


def test_a_script_outside_the_folder_is_patched_where_its_repository_is(tmp_path: Path) -> None:
    """git and patch take no name that leads out of the folder."""
    (tmp_path / "repo" / "deep").mkdir(parents=True)
    (tmp_path / "data").mkdir()
    seen = recording(tmp_path / "repo" / "deep")
    seen = replace(seen, workload=replace(seen.workload, cwd=str(tmp_path / "data")))
    made = source_patch(FixSet(FIXES), seen, catalogue.fixes())
    assert made is not None and made.folder == str(tmp_path / "repo" / "deep")
    (tmp_path / "repo" / ".git").mkdir()
    made = source_patch(FixSet(FIXES), seen, catalogue.fixes())
    assert made is not None and made.folder == str(tmp_path / "repo")
    assert "+++ b/deep/train.py" in made.diff
    (tmp_path / "repo" / ".git").rmdir()
    assert apply(tmp_path / "repo", made.diff).returncode == 0
    report = report_with(
        tmp_path, fixes=[RecommendedFix(fix="x")], patch=made.diff, patch_folder=made.folder
    )
    assert f"Apply it in {made.folder}:" in patch_command(report).stderr


def test_what_no_edit_can_be_made_for_is_left_out_and_named(tmp_path: Path) -> None:
    text = SCRIPT.replace("        batch_size=4,\n", "        **options,\n")
    made = source_patch(FixSet(FIXES), recording(tmp_path, text), catalogue.fixes())
    assert made is not None
    assert made.fixes == ["fused-optimizer", "cpu-threads"]
    assert made.left_out == ["loader-workers", "persistent-workers"]
    assert "num_workers" not in made.diff


def test_a_file_that_has_gone_is_no_patch(tmp_path: Path) -> None:
    seen = recording(tmp_path)
    (tmp_path / "train.py").unlink()
    assert source_patch(FixSet(FIXES[:1]), seen, catalogue.fixes()) is None


def report_with(tmp_path: Path, *trials: Trial, **recommendation) -> Path:
    report = Report(
        trials=list(trials),
        workload=WorkloadRecord(command=["train.py"], cwd="/home/me"),
        environment=Environment(),
        diagnosis=Diagnosis(bottleneck="data_loader"),
        recommendation=Recommendation(**recommendation),
    )
    path = tmp_path / "report.json"
    write_record(report, path)
    return path


def patch_command(path: Path, *more: str) -> subprocess.CompletedProcess:
    return commands.torchdoctor("patch", path, *more)


def test_the_command_prints_the_diff_alone_on_stdout(tmp_path: Path) -> None:
    fixes = [
        RecommendedFix(fix="loader-workers", settings={"num_workers": 2}),
        RecommendedFix(fix="torch-compile", instruction="model.compile()"),
    ]
    measured = PatchTrial(
        speedup=Interval(estimate=1.83, low=1.79, high=1.88), numerics="identical", pairs=6
    )
    diff = "--- a/t.py\n+++ b/t.py\n@@ -1 +1 @@\n-a\n+b\n"
    path = report_with(
        tmp_path, fixes=fixes, patch=diff, patch_fixes=["loader-workers"], patch_trial=measured
    )
    result = patch_command(path)
    assert result.returncode == 0
    assert result.stdout == diff
    assert "1.83x" in result.stderr and "(1.79-1.88)" in result.stderr, "how the patch ran"
    assert "model.compile()" in result.stderr


def test_a_diff_is_printed_as_the_file_is_written(tmp_path: Path) -> None:
    """Whatever the terminal's encoding: a diff in another one would not apply."""
    diff = "--- a/t.py\n+++ b/t.py\n@@ -1 +1 @@\n-a # \u2014 \u00e9\n+b # \u2014 \u00e9\n"
    path = report_with(tmp_path, fixes=[RecommendedFix(fix="tf32", edit=diff)], patch=diff)
    for encoding in ("ascii", "latin-1"):
        result = subprocess.run(
            [sys.executable, "-m", "torchdoctor.cli.front", "patch", str(path)],
            capture_output=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": encoding},
        )
        assert result.returncode == 0, result.stderr
        assert result.stdout == diff.encode()


def test_a_device_is_no_report() -> None:
    result = patch_command(Path("/dev/full"))
    assert result.returncode == 2
    assert "device" in result.stderr


def test_nothing_to_patch_and_no_report(tmp_path: Path) -> None:
    result = patch_command(report_with(tmp_path))
    assert (result.returncode, result.stdout) == (0, "")
    git = subprocess.run(["git", "apply"], input=b"", check=False, capture_output=True)
    behind_the_pipe = git.stderr.decode().strip().removeprefix("error: ").split(" (")[0]
    assert behind_the_pipe and behind_the_pipe in result.stderr, "it is explained"
    (tmp_path / "no.json").write_text("[]")
    result = patch_command(tmp_path / "no.json")
    assert result.returncode == 2
    assert result.stderr.startswith("torchdoctor: ")


def test_one_fix_alone_is_printed_whether_recommended_or_offered(tmp_path: Path) -> None:
    diff = "--- a/t.py\n+++ b/t.py\n@@ -1 +1 @@\n-a\n+b\n"
    path = report_with(
        tmp_path,
        Trial(fixes=FixSet.of("loader-workers"), verdict="unclear", reason="no time"),
        fixes=[RecommendedFix(fix="torch-compile", instruction="model.compile()")],
        also_offered=[RecommendedFix(fix="set-to-none", edit=diff, standing="confirmed")],
    )
    result = patch_command(path, "--fixes", "set-to-none")
    assert (result.returncode, result.stdout) == (0, diff)
    unmeasured = result.stderr
    assert "set-to-none" in unmeasured and not re.search(r"\dx", unmeasured), "no figure is given"
    result = patch_command(path, "--fixes", "torch-compile")
    assert (result.returncode, result.stdout) == (0, "")
    assert "model.compile()" in result.stderr
    assert "set-to-none" in patch_command(path).stderr, "that there is another edit is said"
    result = patch_command(path, "--fixes", "loader-workers")
    assert result.returncode == 2
    assert "no time" in result.stderr, "the table shows it: say why no edit"
    assert "torch-compile, set-to-none" in result.stderr
    result = patch_command(path, "--fixes", "warp-drive")
    assert result.returncode == 2
    assert "no fix 'warp-drive'" in result.stderr


def test_of_several_values_the_measured_one_speaks(tmp_path: Path) -> None:
    """Of two workers that were tried, and four that were not, it was said "was not tried"."""
    gain = Interval(estimate=1.5, low=1.3, high=1.8)
    path = report_with(
        tmp_path,
        Trial(fixes=FixSet.of("loader-workers", {"num_workers": 4}), reason="no time"),
        Trial(fixes=FixSet.of("loader-workers", {"num_workers": 2}), speedup=gain, pairs=3,
              verdict="unclear"),
    )  # fmt: skip
    result = patch_command(path, "--fixes", "loader-workers")
    assert "(num_workers=2)" in result.stderr and "unclear" in result.stderr
    assert "num_workers=4" not in result.stderr and "no time" not in result.stderr
    four = RecommendedFix(fix="loader-workers", settings={"num_workers": 4}, edit="--- a/t.py\n")
    itself, others = proof(read_report(path), [four])[1].split(". ", 1)
    assert "num_workers=4" in itself and not re.search(r"\dx", itself)
    assert "num_workers=2" in others and "1.50x (1.30-1.80)" in others


def test_what_was_measured_with_others_alone_is_said_to_be(tmp_path: Path) -> None:
    one = RecommendedFix(fix="set-to-none", edit="--- a/t.py\n", standing="together")
    row = Trial(
        fixes=FixSet({"set-to-none": {}, "loader-workers": {}}),
        speedup=Interval(estimate=1, low=1, high=1),
    )
    with_others = read_report(report_with(tmp_path, row, also_offered=[one]))
    nothing_ran = read_report(report_with(tmp_path, also_offered=[one]))
    assert len(proof(nothing_ran, [one])) == len(proof(with_others, [one]))
    assert proof(nothing_ran, [one]) != proof(with_others, [one])


def test_several_fixes_asked_for_are_one_diff_that_git_applies(tmp_path: Path) -> None:
    """Both change the loader's call: two diffs, one after the other, would not apply."""
    seen, fixes = recording(tmp_path), catalogue.fixes()
    asked = dict(FIXES[:2])
    both = [
        as_code(RecommendedFix(fix=fix, settings=settings), seen, fixes)
        for fix, settings in asked.items()
    ]
    row = Trial(
        fixes=FixSet(asked),
        speedup=Interval(estimate=1.2, low=0.9, high=1.5),
        verdict="unclear",
    )
    by_hand = RecommendedFix(fix="torch-compile", instruction="model.compile()")
    path = report_with(tmp_path, row, also_offered=[*both, by_hand])
    with_commas = patch_command(path, "--fixes", ",".join(asked))
    assert with_commas.returncode == 2
    assert "recording.json" in with_commas.stderr, "not another run's lines"
    write_recording(seen, tmp_path / "recording.json")
    with_commas = patch_command(path, "--fixes", ",".join(asked))
    assert with_commas.returncode == 0, with_commas.stderr
    assert "1.20x" in with_commas.stderr
    each = [word for name in [*asked, "torch-compile"] for word in ("--fixes", name)]
    result = patch_command(path, *each)
    assert result.stdout == with_commas.stdout
    assert "not measured together" in result.stderr
    assert "model.compile()" in result.stderr
    applied = apply(tmp_path, result.stdout)
    assert applied.returncode == 0, applied.stderr
    text = (tmp_path / "train.py").read_text()
    assert "num_workers=2," in text and "persistent_workers=True" in text


def test_an_options_default_that_another_loader_reads_too_is_said(tmp_path: Path) -> None:
    """The evaluation's loader gets the workers as well, which no trial gave it."""
    text = """import argparse
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("-j", "--workers", type=int, default=0)
args = parser.parse_args()
loader = DataLoader(list(range(100)), num_workers=args.workers, pin_memory=args.workers > 0)
val_loader = DataLoader(list(range(10)), num_workers=args.workers)
# optimizer = Adam(
"""
    seen = recording(tmp_path, text)
    one = as_code(
        RecommendedFix(fix="loader-workers", settings={"num_workers": 2}), seen, catalogue.fixes()
    )
    assert one.edit is not None and "default=2" in one.edit
    [said] = one.also_changes
    assert "--workers" in said and "train.py:8" in said
    path = report_with(tmp_path, fixes=[one], patch=one.edit, patch_fixes=[one.fix])
    report = read_report(path)
    assert said in remarks(report)
    assert said in remarks_on([one], [one.fix], None)
    report = replace(report, recommendation=replace(report.recommendation, fixes=[one]))
    assert said in rendered(report, "markdown")
    alone = text.replace(", num_workers=args.workers)\n# opt", ")\n# opt")
    other = as_code(
        RecommendedFix(fix="loader-workers", settings={"num_workers": 2}),
        recording(tmp_path, alone),
        catalogue.fixes(),
    )
    assert other.edit is not None and other.also_changes == []


def test_other_contents_are_seen_by_one_launch_alone(tmp_path: Path) -> None:
    with Sandbox.choose("auto") as sandbox:
        if sandbox.mode != "overlay":
            pytest.skip("no overlay here")
        path = tmp_path / "data.txt"
        path.write_text("old")
        out = tmp_path / "out"
        new = {str(path): b"new\n", str(tmp_path / "deep" / "file"): b"x"}
        for contents, said in ((new, "new\n"), ({str(path): None}, None), ({}, "old")):
            with out.open("wb") as output:
                command = Command(
                    words=["cat", "data.txt"],
                    cwd=str(tmp_path),
                    environment=os.environ,
                    output=output,
                )
                started = sandbox.start(command, sandbox.new_scratch(), contents=contents)
                started.popen.wait(30)
                sandbox.discard(started)
            text = out.read_text()
            assert text == said if said else "No such file" in text
        assert path.read_text() == "old"
        assert not (tmp_path / "deep").exists()


@pytest.mark.slow
@pytest.mark.xdist_group("trials")  # one at a time: they need their budgets
def test_a_run_finds_a_slow_loader_and_measures_the_fix_and_its_patch(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SLOW_LOADER)
    before = (tmp_path / "train.py").read_bytes()
    row = public_patches.Row(name="tiny", folder=".", command="train.py", fix="loader-workers")
    found = public_patches.compared(row, tmp_path, "200s", tmp_path / "out")
    assert (tmp_path / "train.py").read_bytes() == before
    path = tmp_path / "out" / "tiny" / "report.json"
    report = json.loads(path.read_text())
    assert report["diagnosis"]["bottleneck"] == "data_loader"
    assert report["diagnosis"]["detail"] == "loader-io-bound"
    recommended = report["recommendation"]
    assert [fix["fix"] for fix in recommended["fixes"]] == ["loader-workers"]
    assert recommended["speedup"]["low"] > 1.0
    assert recommended["numerics"] == "identical"
    if recommended["patch_trial"]["reason"] and "overlay" in recommended["patch_trial"]["reason"]:
        pytest.skip("no overlay here")
    assert recommended["patch_trial"]["speedup"], recommended
    # Two pairs, where the machine was busy, bound nothing.
    assert recommended["patch_trial"]["speedup"]["estimate"] > 1.5, recommended
    assert recommended["patch_trial"]["numerics"] == "identical"
    assert (found.applies, found.said) == (True, ""), found
    ratio = recommended["patch_trial"]["speedup"]["estimate"] / recommended["speedup"]["estimate"]
    assert 0.5 < ratio < 2.0, "measured minutes apart, beside other tests: both do about the same"
    shown = commands.torchdoctor("report", path, "--details")
    assert f"{figures.ratio(recommended['patch_trial']['speedup']['estimate'])}x" in shown.stdout
    printed = patch_command(path)
    assert apply(tmp_path, printed.stdout).returncode == 0
    assert "num_workers=" in (tmp_path / "train.py").read_text()
