"""The annotated trace in the viewer of chrome://tracing, which the removed plugin carries."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from browser import chromium, served
from compared_pairs import trace_of

from torchdoctor.schema import Evidence, Finding
from torchdoctor.schema.figures import SHARE_LABELS
from torchdoctor.trace.reader import read_trace
from torchdoctor.trace.timeline import annotate, build_timeline

_POLYFILL = "webcomponents.js@0.7.24"  # the viewer is older than what browsers have today
_READY = "return !!(window.tr && tr.importer && document.getElementById('trace-viewer'))"
_LOADED = "return !!document.getElementById('trace-viewer').model"
_SLICES = """
const found = [];
const model = document.getElementById('trace-viewer').model;
for (const process of model.getAllProcesses())
  for (const thread of Object.values(process.threads))
    for (const slice of thread.sliceGroup.slices)
      found.push([process.name, thread.name, slice.title]);
return found;
"""


def viewer(folder: Path) -> None:
    """The viewer's page in `folder`, with the polyfill that it loads from the network elsewhere."""
    plugin = importlib.util.find_spec("torch_tb_profiler")
    if plugin is None or plugin.origin is None:
        pytest.skip("torch-tb-profiler, which carries the viewer, is not installed")
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip(f"no npm to get {_POLYFILL} with")
    packed = subprocess.run(
        [npm, "pack", _POLYFILL, "--silent"], cwd=folder, capture_output=True, text=True
    )
    if packed.returncode:
        pytest.skip(f"npm cannot get {_POLYFILL}")
    with tarfile.open(folder / packed.stdout.strip()) as archive:
        content = archive.extractfile("package/webcomponents.min.js")
        assert content is not None
        (folder / "polyfill.js").write_bytes(content.read())
    pages = Path(plugin.origin).parent / "static"
    shutil.copy(pages / "trace_viewer_full.html", folder)
    page = (pages / "trace_embedding.html").read_text(encoding="utf-8")
    before, _, after = page.partition('<script src="https://')
    assert after, "the page loads no polyfill any more"
    page = f'{before}<script src="polyfill.js">{after.partition(">")[2]}'
    (folder / "index.html").write_text(page, encoding="utf-8")


@pytest.mark.slow
@pytest.mark.xdist_group("chromium")
def test_the_viewer_of_chrome_tracing_shows_our_tracks_and_those_of_the_trace(
    tmp_path: Path,
) -> None:
    viewer(tmp_path)
    source, target = tmp_path / "source.json", tmp_path / "annotated.json"
    source.write_bytes(trace_of(loader_us=300.123).text())
    trace = read_trace(source)
    waits = Evidence(fact="waits", sentence="It waits.")
    finding = Finding(check="data-wait", share_of_step=0.25, evidence=[waits])
    annotate(source, target, build_timeline(trace), trace.base_us, [finding])
    with served(tmp_path) as address, chromium() as browser:
        browser.open(f"{address}/index.html")
        browser.wait(lambda: browser.run(_READY))
        browser.run("window.postMessage({name: 'it', data: arguments[0]}, '*')", target.read_text())
        browser.wait(lambda: browser.run(_LOADED))
        browser.picture("trace-viewer")
        slices = {tuple(row) for row in browser.run(_SLICES)}
    ours = {(thread, title) for process, thread, title in slices if process == "torchdoctor"}
    assert {("steps", "step 0"), ("findings", "data-wait 25%")} <= ours
    inside = {title for thread, title in ours if thread.startswith("what the step is in")}
    assert {SHARE_LABELS["gpu"], SHARE_LABELS["data_loader"]} <= inside
    assert any(process != "torchdoctor" for process, _, _ in slices), "the trace itself is gone"
