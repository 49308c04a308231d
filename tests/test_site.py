"""The site builds without a warning, is readable on both sizes of screen, and asks no one else."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
import site_hook
import site_pages
from browser import Browser, chromium, served

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = ["", "tutorials/slow-loader/", "cli/", "catalogue/", "comparison/", "architecture/"]


def _letters(drawing: str) -> str:
    return "".join(ElementTree.fromstring(drawing).itertext())


def test_generated_files_are_those_of_the_commands_and_stored_reports() -> None:
    for name, text in site_pages.pages().items():
        stored = (DOCS / name).read_text(encoding="utf-8")
        if name.endswith(".svg"):  # rich's versions place letters differently
            text, stored = _letters(text), _letters(stored)
        assert stored == text, f"make docs: {name} is old"


def test_pictures_ask_no_other_server() -> None:
    for picture in DOCS.rglob("*.svg"):
        text = picture.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "http" not in text.replace("https://www.textualize.io", "")


def test_links_out_of_docs_lead_to_the_repository() -> None:
    text = "[a](../gate.md) [b](../../benchmarks/gpu/README.md#x) [c](../../tests) [d](#e)"
    assert site_hook.outward(text, "tutorials/page.md", "R") == (
        "[a](../gate.md) [b](R/blob/main/benchmarks/gpu/README.md#x) [c](R/tree/main/tests) [d](#e)"
    )


def test_commands_are_copied_without_their_prompt() -> None:
    assert site_hook.unprompted("```console\n$ a b\n$ c\n```\n") == "```bash\na b\nc\n```\n"
    output = "```console\n$ a\nits output\n```\n"
    assert site_hook.unprompted(output) == output


def test_a_drawing_of_arrows_becomes_a_table() -> None:
    drawn = site_hook.arrows("```mermaid\ngraph TD\n  a --> b\n  a --> c\n```\n")
    assert "| `a` | `b`, `c` |" in drawn and "mermaid" not in drawn


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("material") is None:
        pytest.skip("mkdocs-material is not installed")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


@pytest.mark.slow
def test_the_site_builds_without_a_warning(site: Path) -> None:
    assert (site / "tutorials" / "ci-gate" / "index.html").is_file()
    assert (site / "report.schema.json").is_file()


@pytest.fixture(scope="module")
def shown(site: Path) -> Iterator[tuple[Browser, str]]:
    with served(site) as address, chromium() as browser:
        yield browser, address


_CONTRAST = """
const light = text => {
  const [r, g, b] = text.match(/[0-9.]+/g).slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const ground = light(getComputedStyle(document.body).backgroundColor);
return ['h1', 'p', 'a:not(.headerlink)'].flatMap(name => {
  const element = document.querySelector('.md-content__inner ' + name);
  if (!element) return [];
  const letters = light(getComputedStyle(element).color);
  return [(Math.max(ground, letters) + 0.05) / (Math.min(ground, letters) + 0.05)];
});
"""


@pytest.mark.slow
# No colour depends on the width, and no width on the colours.
@pytest.mark.parametrize(("scheme", "width"), [("light", 390), ("dark", 1400)])
def test_pages_are_readable(scheme: str, width: int, shown: tuple[Browser, str]) -> None:
    browser, address = shown
    feature = [{"name": "prefers-color-scheme", "value": scheme}]
    size = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": feature})
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    # A reader's own choice of colours, which the page remembers, goes before that of the browser.
    forget = {"source": "localStorage.clear()"}
    browser.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", forget)
    for page in PAGES:
        browser.open(f"{address}/{page}")
        browser.picture(f"site-{scheme}-{width}-{page.strip('/').replace('/', '-') or 'index'}")
        assert browser.run("return document.documentElement.scrollWidth") <= width, page
        assert min(browser.run(_CONTRAST)) >= 4.5, page
        asked = browser.run("return performance.getEntriesByType('resource').map(r => r.name)")
        assert [x for x in asked if not x.startswith((address, "data:"))] == [], page
