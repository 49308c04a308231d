"""The page of a report as a person sees it, in a real Chromium: offline, light, dark, on paper."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from browser import Browser, chromium
from run_folders import ranks_folder, report_with_run
from samples import GATE, SAMPLES

from torchdoctor.compare import compare
from torchdoctor.reports.document import PAGE_NAME
from torchdoctor.reports.formats import rendered, write_page
from torchdoctor.reports.side_by_side import comparison_page, gate_page
from torchdoctor.runs.traces import trace_checkup
from torchdoctor.schema import FixSet, Report, Shares, Trial

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("chromium")]
OF_A_RUN = ["time", "trials", "steps", "resources", "timeline", "tree", "source"]
# A picture is there if something in it has an extent, and no canvas is of one colour.
EMPTY = """
return [...document.querySelectorAll("figure")].filter(figure => {
  const drawn = [...figure.querySelectorAll(".drawing svg *, .drawing div, .drawing pre")];
  const canvases = [...figure.querySelectorAll("canvas")];
  const plain = canvas => {
    const pixels = new Uint32Array(
      canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.buffer);
    return pixels.every(pixel => pixel === pixels[0]);
  };
  const some = drawn.some(part => part.getBoundingClientRect().width > 20);
  return !some || canvases.some(plain) || !figure.querySelector("figcaption").innerText;
}).map(figure => figure.id);
"""
# Texts whose contrast with what is behind them is below 4.5, as WCAG AA wants.
PALE = """
const rgb = text => text.match(/[\\d.]+/g).map(Number);
const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
  .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
  .reduce((sum, v, at) => sum + v * [0.2126, 0.7152, 0.0722][at], 0);
const behind = node => {
  for (; node; node = node.parentElement) {
    const colour = getComputedStyle(node).backgroundColor;
    if (rgb(colour).length === 3) return rgb(colour);
  }
  return [255, 255, 255];
};
return [...document.querySelectorAll("body *")].filter(node =>
  [...node.childNodes].some(child => child.nodeType === 3 && child.data.trim())
  && node.getBoundingClientRect().width && !node.closest("script, style, canvas"))
  .filter(node => {
    const style = getComputedStyle(node);
    const own = node.closest("svg") ? style.fill : style.color;
    const [a, b] = [light(rgb(own)), light(behind(node))];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) < 4.5;
  }).map(node => `${node.tagName} ${node.className} ${node.textContent.slice(0, 40)}`);
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("run")
    report = report_with_run(folder)
    long = replace(report.workload, command=[f"/home/ada/{'a_folder_' * 9}/train.py"])
    report = replace(report, workload=long)
    trials = [replace(x, pair_speedups=[x.speedup.estimate] * x.pairs) if x.speedup else x
              for x in report.trials]  # fmt: skip
    patch = report.recommendation.fixes[0].edit
    recommendation = replace(report.recommendation, patch=patch)
    trials.append(Trial(fixes=FixSet.of("<b>&")))
    report = replace(report, trials=trials, recommendation=recommendation)
    write_page(report)
    ranks = tmp_path_factory.mktemp("traces") / "ranks"
    ranks_folder(ranks)
    traced = ranks / "page.html"
    traced.write_text(rendered(trace_checkup([str(ranks)]), "html"))
    bare = folder / "bare.html"
    bare.write_text(rendered(SAMPLES["nothing_found"](), "html"))
    compared = folder / "compared.html"
    compared.write_text(page_of_two(report, tmp_path_factory.mktemp("other")))
    gate = folder / "gate.html"
    gate.write_text(gate_page(GATE))
    return {
        "run": folder / PAGE_NAME, "ranks": traced, "bare": bare, "compare": compared, "gate": gate
    }  # fmt: skip


def page_of_two(a: Report, folder: Path) -> str:
    """The page of a comparison with a run of the same program that has two workers."""
    b, time = report_with_run(folder), a.baseline.step_time_s
    faster = replace(time, median=0.6 * time.median, mean=0.6 * time.mean, p10=0.55 * time.median)
    shares = Shares(data_loader=0.61, cpu=0.365, other=0.025)
    launches = [0.6 * launch_s for launch_s in a.baseline.launches_s]
    b = replace(b, workload=a.workload, baseline=replace(
        b.baseline, step_time_s=faster, samples_per_s=a.baseline.samples_per_s / 0.6,
        shares=shares, launches_s=launches))  # fmt: skip
    return comparison_page(compare(a, b, ("before/report.json", "after/report.json")), a, b)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


def show(
    browser: Browser, page: Path, scheme: str = "light", width: int = 1280, media: str = ""
) -> None:
    driver = browser.driver
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})
    browser.open(page.as_uri())


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 400)])
def test_every_picture_is_there_in_either_light_and_width(browser, pages, scheme, width) -> None:
    show(browser, pages["run"], scheme, width)
    browser.picture(f"page-{scheme}-{width}")
    assert browser.each("figure", "e.id") == OF_A_RUN
    assert browser.run(EMPTY) == []
    assert browser.run(PALE) == []
    assert browser.run("return document.documentElement.scrollWidth") <= width
    assert browser.run("return performance.getEntriesByType('resource').length") == 0
    assert browser.driver.get_log("browser") == []


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 400)])
@pytest.mark.parametrize(
    ("page", "drawn"),
    [("compare", ["time", "trials", "steps-A", "steps-B"]), ("gate", ["trials", "time"])],
)
def test_two_versions_stand_side_by_side(browser, pages, page, drawn, scheme, width) -> None:
    show(browser, pages[page], scheme, width)
    browser.picture(f"{page}-{scheme}-{width}")
    assert browser.each("figure", "e.id") == drawn
    assert len(browser.each("#time .row", "e.id")) == 2
    assert browser.run(EMPTY) == []
    assert browser.run(PALE) == []
    assert browser.run("return document.documentElement.scrollWidth") <= width
    assert browser.run("return performance.getEntriesByType('resource').length") == 0
    assert browser.driver.get_log("browser") == []
    if page == "compare":
        spans = browser.run("return clock.plots.map(p => [p.scales.x.min, p.scales.x.max])")
        assert spans[0] == spans[1], "the steps of both have one clock"


def test_what_is_missing_is_named_with_its_reason(browser, pages) -> None:
    show(browser, pages["bare"])
    assert browser.run(EMPTY) == []
    drawn, left_out = browser.each("figure", "e.id"), browser.texts("#left-out li")
    assert len(drawn) + len(left_out) == 8
    assert all(text.endswith(".") and ": " in text for text in left_out)


def test_traces_of_ranks_show_the_timeline_the_operators_and_who_waits(browser, pages) -> None:
    show(browser, pages["ranks"])
    assert {"timeline", "operators", "ranks"} <= set(browser.each("figure", "e.id"))
    assert browser.run(EMPTY) == []
    assert len(browser.each("#ranks .row", "e.id")) == 2
    assert browser.driver.get_log("browser") == []


def test_the_keyboard_reaches_everything_in_the_order_of_the_page(browser, pages) -> None:
    from selenium.webdriver.common.keys import Keys

    show(browser, pages["run"])
    reachable = browser.run(
        "return [...document.querySelectorAll('a, button, summary, [tabindex]')]"
        ".filter(e => e.getBoundingClientRect().width && !e.closest('details > :not(summary)'))"
        ".map((e, at) => { e.dataset.at = at; return at; })"
    )
    focused = []
    for _ in reachable:
        browser.driver.switch_to.active_element.send_keys(Keys.TAB)
        focused.append(browser.run("return Number(document.activeElement.dataset.at)"))
    assert focused == reachable
    browser.driver.switch_to.active_element.send_keys(Keys.ENTER)
    assert browser.each("details", "e.open")[-1], "the last thing reached is the last section"


def test_zooming_moves_steps_and_resources_together(browser, pages) -> None:
    show(browser, pages["run"])
    browser.run("document.querySelector('#steps .tools button').click()")
    spans = browser.run("return clock.plots.map(p => [p.scales.x.min, p.scales.x.max])")
    assert len(spans) > 2
    assert all(span == spans[0] for span in spans)
    assert spans[0][1] - spans[0][0] < browser.run("return clock.last - clock.first")


def test_it_prints_with_the_details_open(browser, pages) -> None:
    show(browser, pages["run"], "dark")
    printed = browser.driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    assert base64.b64decode(printed["data"]).count(b"/Type /Page\n") >= 2
    assert all(browser.each("details", "e.open"))
    show(browser, pages["run"], "dark", media="print")
    assert browser.run(PALE) == []
