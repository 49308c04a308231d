"""The catalogue: every check and fix file is whole, and its pages say what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import catalogue_pages
import pytest
from catalogue_faults import faults

from torchdoctor import probe
from torchdoctor.advice import catalogue
from torchdoctor.schema.errors import UsageError
from torchdoctor.schema.specs import RISKS

DOCS = Path(__file__).parent.parent / "docs"


def test_no_file_has_a_fault() -> None:
    assert faults() == []


PAGE = catalogue.fixes()["set-to-none"].text
SWAPPED = PAGE.replace("Risks\n-----", "X").replace("Sources\n-------", "Risks\n-----")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"apply": None}, "lacks apply or example"),
        ({"example": None}, "lacks apply or example"),
        ({"untried": "It needs another GPU."}, "lacks offers or refusals"),
        ({"p_helps": 1.0}, "is no probability"),
        ({"also_known_as": ("set-to-none",)}, "the name of several files"),
        ({"also_known_as": ("drop gradients",)}, "the name of several files"),
        ({"name": ""}, "its name fits in no table"),
        ({"treats": ("no-such-check",)}, "treats no-such-check, which is no check"),
        ({"page": PAGE.replace("Risks\n-----", "Dangers\n-------")}, "no section 'Risks'"),
        ({"page": "No sentence\n" + PAGE.split("\n", 1)[1]}, "title is no sentence"),
        ({"page": PAGE.split("- PyTorch documentation")[0]}, "section 'Sources' is empty"),
        ({"page": SWAPPED.replace("X", "Sources\n-------")}, "out of order"),
    ],
)
def test_a_fault_is_said(
    changes: dict[str, object], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fix = replace(catalogue.fixes()["set-to-none"], **changes)  # type: ignore[arg-type]
    monkeypatch.setattr(catalogue, "fixes", lambda: {"set-to-none": fix})
    assert any(said in fault for fault in faults()), faults()


def test_every_fix_has_public_sources() -> None:
    for ident, fix in catalogue.fixes().items():
        sources = fix.text.split("\nSources\n", 1)[1]
        assert "https://" in sources, ident
        assert "http://" not in sources, ident


def test_fixes_load_by_path_in_an_interpreter_that_has_nothing_else(tmp_path: Path) -> None:
    """The user's program may run where torchdoctor is not installed."""
    files = [fix.file for fix in catalogue.fixes().values()]
    files += [ceiling.file for ceiling in catalogue.ceilings().values()]
    (tmp_path / "probe").symlink_to(Path(probe.__file__ or "").parent)
    code = """
import sys
sys.path.insert(0, ".")
from probe.fixkit.program import execute
for file in sys.argv[1:]:
    module = execute(file, "fix")
    assert module.FIX if hasattr(module, "FIX") else module.ABLATION
assert not [name for name in sys.modules if name.split(".")[0] in ("torchdoctor", "torch")]
"""
    # -I -S: neither torchdoctor nor torch can be found.
    subprocess.run([sys.executable, "-I", "-S", "-c", code, *files], check=True, cwd=tmp_path)


@pytest.mark.parametrize("ident", [*catalogue.checks(), *catalogue.fixes()])
def test_explain_shows_the_page_and_the_facts(ident: str) -> None:
    page = catalogue.explain(ident)
    assert page.startswith(f"{ident} (")
    assert "\nFacts\n-----\n" in page
    assert "\n\n\n" not in page
    assert not re.search(r"[a-z]-\n\w", page), "a terminal would show 'hand- over'"


UNTREATED = [
    ident
    for ident in catalogue.checks()
    if not any(ident in fix.treats for fix in catalogue.fixes().values())
]


@pytest.mark.parametrize("ident", UNTREATED)
def test_a_check_that_no_fix_treats_says_what_to_do(
    ident: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = catalogue.explain(ident)
    told = page.split("\nWhat to do\n----------\n", 1)[1].split("\n\n", 1)[0]
    assert len(told) > 100
    assert "What to do" in page.rsplit("\nFacts\n", 1)[1], "the table of facts leads there"
    check = catalogue.checks()[ident]
    monkeypatch.setattr(catalogue, "checks", lambda: {ident: check})
    before = set(faults())
    without = replace(check, page=check.text.replace("What to do\n---", "Something else\n---"))
    monkeypatch.setattr(catalogue, "checks", lambda: {ident: without})
    [fault] = [fault for fault in set(faults()) - before if "'What to do'" in fault]
    assert fault.startswith(f"check {ident}")


@pytest.mark.parametrize(
    ("ident", "said"),
    [
        ("data-wait", "- Threshold: 20 % of the step"),
        ("graph-breaks", "- Threshold: 1 graph break\n"),
        ("swap", "- Threshold: 268435456 bytes in swap"),
        ("data-wait", "XProf: input-bound above 20 %, moderately above 5 % (https://github.com/"),
        ("step-outliers", "torchdoctor's own; SageMaker Debugger marks"),
    ],
)
def test_a_threshold_has_its_unit_and_its_source(ident: str, said: str) -> None:
    assert said in catalogue.explain(ident)


@pytest.mark.parametrize("ident", ["loader-workers", "persistent-workers"])
def test_workers_say_beside_their_class_that_augmentation_draws_other_numbers(ident: str) -> None:
    page = catalogue.explain(ident)
    [kept] = [line for line in page.splitlines() if line.startswith("- Keeps results:")]
    assert "(risk 1)" in kept and "augmentation" in kept


def test_a_threshold_from_nowhere_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    check = replace(catalogue.checks()["swap"], source="common sense")
    monkeypatch.setattr(catalogue, "checks", lambda: {"swap": check})
    assert any(fault.startswith("check swap") and "'common sense'" in fault for fault in faults())


@pytest.mark.parametrize("ident", catalogue.fixes())
def test_a_fix_says_what_the_way_of_applying_it_means(ident: str) -> None:
    applied = next(x for x in catalogue.explain(ident).splitlines() if x.startswith("- Applied: "))
    assert applied.endswith(")")
    assert len(applied) > len(f"- Applied: {catalogue.fixes()[ident].applied}") + 20


def test_explain_names_the_nearest_id() -> None:
    with pytest.raises(UsageError, match="Did you mean 'loader-workers'"):
        catalogue.explain("loader-worker")
    with pytest.raises(UsageError, match="--all"):
        catalogue.explain("zzz")


def test_the_tree_asks_its_questions_in_order_and_holds_every_check_once() -> None:
    text = catalogue.tree()
    asked = ("data loader time", "memory copy", "communication", "GPU util", "CPU exec", "anything")
    at = [text.index(f"Is {words}") for words in asked]
    assert at == sorted(at)
    lines = text.splitlines()
    for ident in catalogue.checks():
        assert sum(line.startswith(f"  {ident}: ") for line in lines) == 1


def test_the_catalogue_is_for_users_and_explains_its_columns() -> None:
    pages = catalogue_pages.pages()
    index = pages["catalogue.md"]
    assert "pytest" not in index
    assert ".py::" not in index
    for kept, risk in RISKS.items():
        assert f"- {risk}, {kept}: " in index


def test_branches_say_that_those_of_the_gpu_count_as_cpu_without_one() -> None:
    first = next(ident for ident, check in catalogue.checks().items() if check.branch == "gpu")
    [before, _] = catalogue.tree().split(f"\n  {first}: ")
    said = before.splitlines()[-1]
    assert "without a GPU" in said and said.rstrip(")").endswith("cpu"), "where the branch begins"
    assert f": {catalogue.WITHOUT_GPU}\n" in catalogue.explain("compute")
    pages = catalogue_pages.pages()
    [row] = [line for line in pages["catalogue.md"].splitlines() if "(checks/compute.md)" in line]
    assert f"| {catalogue.WITHOUT_GPU} |" in row


def test_the_listing_holds_every_id() -> None:
    words = catalogue.listing().split()
    for ident in [*catalogue.checks(), *catalogue.fixes()]:
        assert ident in words


def test_risk_follows_from_what_a_fix_keeps() -> None:
    fixes = ("pin-memory", "torch-compile", "mixed-precision", "larger-batch")
    assert [catalogue.fixes()[fix].risk for fix in fixes] == [0, 1, 2, 3]


# Names of the plan for the catalogue that became a part of another file, or were named otherwise.
FORMER = {
    "non-blocking-copy": "pin-memory",
    "fuse-pointwise": "torch-compile",
    "input-normalization": "normalization",
    "batch-normalization": "normalization",
    "multi-node": "several-machines",
    "foreach-clip": "gradient-clipping",
}


PLANNED = """
activation-checkpointing adamw allocator arrow-format as-tensor attention batch-normalization
better-gpu channels-last conv-bias-off cpu-simd cpu-threads cudnn-benchmark data-access-layer ddp
debug-off decoded-cache device-prefetch ema-foreach fast-storage foreach-clip fsdp fuse-pointwise
fused-optimizer gc-freeze gradient-accumulation gradient-clipping in-order-off input-normalization
larger-batch loader-workers lr-schedule mixed-precision multi-node no-grad-evaluation
non-blocking-copy numa-binding pad-to-multiple persistent-workers pin-memory pipeline-split
prefetch-factor release-graph remove-sync set-to-none tensor-on-device tf32 torch-compile
use-the-gpu vectorize
"""


@pytest.mark.parametrize("ident", PLANNED.split())
def test_explain_answers_for_every_planned_fix(ident: str) -> None:
    assert f"{FORMER.get(ident, ident)} (fix): " in catalogue.explain(ident)


@pytest.mark.parametrize(("former", "ident"), FORMER.items())
def test_explain_answers_for_what_became_a_part_of_another(former: str, ident: str) -> None:
    page = catalogue.explain(former)
    first, _, other = page.partition("\n\n")
    assert former in first and ident in first and "\n" not in first
    assert other == catalogue.explain(ident)


def test_the_pages_in_docs_are_those_of_the_files() -> None:
    pages = catalogue_pages.pages()
    for name, text in pages.items():
        assert (DOCS / name).read_text(encoding="utf-8") == text, f"make docs: {name} is old"
    found = {f"{kind}/{p.name}" for kind in ("checks", "fixes") for p in (DOCS / kind).glob("*")}
    assert found == set(pages) - {"catalogue.md", "agents.md", "llms.txt"}


def test_writing_the_pages_takes_stale_ones_away(tmp_path: Path) -> None:
    (tmp_path / "fixes").mkdir()
    (tmp_path / "fixes" / "gone.md").write_text("old")
    assert catalogue_pages.main([str(tmp_path)]) == 0
    assert not (tmp_path / "fixes" / "gone.md").exists()
    assert (tmp_path / "fixes" / "tf32.md").read_text().startswith("# tf32 (fix): ")
    assert catalogue_pages.main([]) == 2
