"use strict";
// Draws the pictures from the figures of the report; see pictures.py for what each holds.
const figures = JSON.parse(document.getElementById("figures").textContent);
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const percent = (part) => `${(100 * part).toFixed(3)}%`;

function made(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {}))
    if (value !== null && value !== undefined && value !== "") node.setAttribute(name, value);
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}
const h = (tag, attributes, ...children) => made(document.createElement(tag), attributes, children);
const s = (tag, attributes, ...children) =>
  made(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

// Figures with the digits that help.
const digits = (value) => value.toLocaleString("en", { maximumSignificantDigits: 3, useGrouping: false });
const share = (part) => `${part && Math.abs(part) < 0.0995 ? (100 * part).toFixed(1).replace(".0", "") : Math.round(100 * part)} %`;
function seconds(value) {
  const [scale, unit] = value >= 1 ? [1, "s"] : value >= 1e-3 ? [1e3, "ms"] : [1e6, "us"];
  return `${digits(value * scale)} ${unit}`;
}

// A row of a chart: a label, what is drawn, and a text.
function row(label, drawn, text, tone) {
  return h("div", { class: `row ${tone || ""}` }, h("span", { class: "label" }, label), drawn, h("span", { class: "value" }, text));
}
function stacked(parts, most) {
  const spans = parts.map((part) =>
    h("span", { class: part.key, style: `width:${percent(part.s / most)}`, title: `${part.label}: ${part.text || seconds(part.s)}` }));
  return h("div", { class: "track" }, ...spans);
}
function legend(parts) {
  const items = parts.map((part) => h("li", {}, h("span", { class: `key ${part.key}` }), part.label));
  return h("ul", { class: "legend" }, ...items);
}

// Speed-ups on one logarithmic axis; an interval that bounds nothing is cut at its ends.
function axisOf(intervals) {
  const ends = intervals.flat().map((ratio) => Math.min(Math.max(ratio, 1 / 20), 40));
  const low = Math.min(...ends, 0.9) / 1.04, high = Math.max(...ends, 1.1) * 1.04;
  const at = (ratio) => Math.min(Math.max(Math.log(ratio / low) / Math.log(high / low), 0), 1);
  const all = [0.05, 0.1, 0.2, 0.5, 0.8, 0.9, 1, 1.1, 1.2, 1.5, 2, 3, 5, 10, 20, 40];
  const ticks = [1];
  for (const tick of all.filter((value) => value > low && value < high))
    if (ticks.every((other) => Math.abs(at(other) - at(tick)) > 0.085)) ticks.push(tick);
  return { at, ticks };
}
const ends = ({ low, estimate, high }) => [low, estimate, high];
function interval(axis, [low, middle, high], y, tone) {
  const parts = [s("line", { class: "whisker", x1: percent(axis.at(low)), x2: percent(axis.at(high)), y1: y, y2: y })];
  for (const end of [low, high])
    parts.push(s("line", { class: "whisker", x1: percent(axis.at(end)), x2: percent(axis.at(end)), y1: y - 4, y2: y + 4 }));
  parts.push(s("circle", { class: tone ? `point ${tone}-fill` : "point", cx: percent(axis.at(middle)), cy: y, r: 5 }));
  return parts;
}

const drawings = {
  time(box, { rows }) {
    const most = Math.max(...rows.map((bar) => bar.high || bar.s));
    for (const bar of rows) {
      const parts = bar.parts
        ? bar.parts.map((part) => ({ ...part, s: part.share * bar.s }))
        : [{ key: bar.good ? "good-fill" : "plain", label: bar.label, s: bar.s }];
      const track = stacked(parts, most);
      if (bar.low && bar.high)
        track.append(h("i", { class: "whisker", style: `left:${percent(bar.low / most)};width:${percent((bar.high - bar.low) / most)}`, title: `${bar.ends || "95 % interval"} ${seconds(bar.low)} to ${seconds(bar.high)}` }));
      box.append(row(bar.label, track, seconds(bar.s), bar.good ? "good" : ""));
    }
    if (rows[0].parts) box.append(legend(rows[0].parts));
  },

  trials(box, { rows, floor, axis: axis_text }) {
    const axis = axisOf([...rows.map((trial) => ends(trial.interval)), ...(floor ? [ends(floor)] : [])]);
    const grid = () => [
      floor && s("rect", { class: "band", x: percent(axis.at(floor.low)), width: percent(axis.at(floor.high) - axis.at(floor.low)), y: 0, height: 34 }),
      ...axis.ticks.map((tick) => s("line", { class: tick === 1 ? "one" : "grid", x1: percent(axis.at(tick)), x2: percent(axis.at(tick)), y1: 0, y2: 34 })),
    ];
    for (const trial of rows) {
      const tone = trial.tone || { faster: "good", slower: "bad" }[trial.verdict] || "";
      const pairs = trial.pairs.map((ratio) => s("circle", { class: "pair", cx: percent(axis.at(ratio)), cy: 27, r: 2.5 }));
      const drawn = s("svg", { height: 34, class: "forest" }, ...grid(), ...pairs, ...interval(axis, ends(trial.interval), 14, tone));
      box.append(row(trial.label, drawn, `${trial.figures}, ${trial.verdict}`, tone));
    }
    const names = axis.ticks.map((tick) => s("text", { class: "soft", x: percent(axis.at(tick)), y: 15, "text-anchor": "middle" }, `${tick}x`));
    box.append(row("", s("svg", { height: 20, class: "forest" }, ...names), axis_text || "slower ← 1x → faster"));
  },

  steps(box, drawn) {
    const marked = Object.entries(drawn.marks).filter(([, rows]) => rows.length);
    const values = [drawn.x, drawn.y, ...marked.map(([, rows]) => {
      const only = new Array(drawn.y.length).fill(null);
      for (const at of rows) only[at] = drawn.y[at];
      return only;
    })];
    const series = [since, dots("step", "--accent", 4)];
    const tones = ["--bad", "--communication", "--data_loader"];
    marked.forEach(([name], at) => series.push(dots(name, tones[at % tones.length], 7)));
    curve(box, "time of each (ms)", values, series, 260, { warm: drawn.warm, to: drawn.to, top: drawn.top, log: Math.max(...drawn.y) > 6 * drawn.median });
    box.append(h("p", { class: "panel-name" }, "How many took how long"));
    const most = Math.max(...drawn.counts), wide = 1 / drawn.counts.length;
    const bars = drawn.counts.map((count, at) =>
      s("rect", { class: "plain", x: percent(at * wide), width: percent(wide * 0.9), y: 90 - 86 * (count / most), height: 86 * (count / most) },
        s("title", {}, `${count} of ${digits(drawn.edges[at])} to ${digits(drawn.edges[at + 1])} ms`)));
    const [low, high] = [drawn.edges[0], drawn.edges[drawn.edges.length - 1]];
    const middle = percent((drawn.median - low) / (high - low));
    bars.push(s("line", { class: "edge", x1: middle, x2: middle, y1: 0, y2: 90 }));
    bars.push(s("text", { class: "soft", x: middle, y: 106, "text-anchor": "middle" }, `median ${digits(drawn.median)} ms`));
    box.append(s("svg", { height: 112, class: "histogram" }, ...bars));
    box.append(h("p", { class: "ends" }, h("span", {}, `${digits(low)} ms`), h("span", {}, `${digits(high)} ms${drawn.cut ? " and more" : ""}`)));
  },

  resources(box, curves) {
    const tones = ["--accent", "--gpu", "--memcpy", "--communication", "--data_loader"];
    const named = { cpu: "usable CPUs", process_tree_GB: "the program's memory", read_MB_per_s: "read from disk", written_MB_per_s: "written to disk", MB_per_s: "network, both ways" };
    const units = { utilization: ["% busy", 100], memory: ["GB", 1], disk: ["MB/s", 1], network: ["MB/s", 1] };
    for (const [group, [unit, scale]] of Object.entries(units)) {
      const lines = Object.entries(curves).filter(([name]) => name.startsWith(group) && !name.endsWith("program_cpus"));
      if (!lines.length) continue;
      const labels = lines.map(([name]) => name.split("/")[1]).map((name) => named[name] || name.replace("_GB", "").replace("gpu", "GPU").replace("_", " "));
      // One column of times for all series of a panel: uPlot joins tables with gaps.
      const joined = uPlot.join(lines.map(([, line]) => [line.x, line.y.map((value) => value * scale)]));
      const series = labels.map((label, at) => ({
        label, stroke: () => colour(tones[at % tones.length]), width: 1.6, spanGaps: true, points: { show: false },
        value: (_, value) => (value === null || value === undefined ? "" : `${digits(value)} ${unit.split(" ")[0]}`),
      }));
      curve(box, `${labels.join(", ")} (${unit})`, joined, [since, ...series], 130, { zero: true });
    }
  },

  timeline(box, drawn) {
    const view = { from: 0, to: drawn.whole };
    const area = h("div", {});
    const tones = { "waiting for data": "data_loader", "copies to device": "memcpy", copies: "memcpy", forward: "runtime", "forward and other": "runtime", backward: "cpu", optimizer: "communication", "GPU kernels": "gpu", collectives: "waits" };
    function redraw() {
      const length = view.to - view.from, at = (time) => (time - view.from) / length;
      area.replaceChildren();
      for (const lane of drawn.lanes) {
        const spans = lane.from.map((begin, span) => [begin, lane.to[span] - begin]).filter(([begin, long]) => begin + long > view.from && begin < view.to).map(([begin, long]) => {
          const from = Math.max(at(begin), 0), to = Math.min(at(begin + long), 1);
          return s("rect", { class: tones[lane.label] || "other", x: percent(from), width: percent(Math.max(to - from, 0.0008)), y: 4, height: 20 },
            s("title", {}, `${lane.label}: ${seconds(long / 1e9)}, ${seconds(begin / 1e9)} after the first of these began`));
        });
        area.append(row(lane.label, s("svg", { height: 28, class: "forest" }, ...edges(at, 28), ...spans), `${lane.share} of the time`));
      }
      const names = drawn.edges.slice(0, -1).map((edge, number) => [edge, `step ${drawn.first + number}`]).filter(([edge], number) =>
        at(edge) >= 0 && at(edge) < 0.93 && (!number || at(edge) - at(drawn.edges[number - 1]) > 0.12));
      const labels = names.map(([edge, name]) => s("text", { class: "soft", x: percent(at(edge)), y: 14, dx: 3 }, name));
      area.append(row("", s("svg", { height: 18, class: "forest" }, ...labels), `${seconds(length / 1e9)} shown`));
    }
    const edges = (at, height) => drawn.edges.map((edge) => s("line", { class: "edge", x1: percent(at(edge)), x2: percent(at(edge)), y1: 0, y2: height }));
    const within = (from, to) => {
      const long = Math.min(Math.max(to - from, drawn.whole / 1000), drawn.whole);
      view.from = Math.min(Math.max(from, 0), drawn.whole - long);
      view.to = view.from + long;
      redraw();
    };
    box.append(tools("the timeline", view, within, () => within(0, drawn.whole)), area);
    redraw();
    if (drawn.trace)
      box.append(h("p", { class: "soft" }, "Every event: open ", h("a", { href: encodeURI(drawn.trace) }, "the trace"), " in ", h("a", { href: "https://ui.perfetto.dev" }, "ui.perfetto.dev"), "."));
  },

  operators(box, { rows }) {
    const most = Math.max(...rows.map((bar) => bar.s));
    for (const bar of rows.filter(({ s }) => s > 0)) box.append(row(bar.label, stacked([{ key: "plain", label: bar.label, s: bar.s }], most), `${seconds(bar.s)}, ${digits(bar.calls)} call${bar.calls === 1 ? "" : "s"}`));
  },

  tree(box, { rows, bottleneck, detail }) {
    const list = h("ol", { class: "tree" });
    for (const asked of rows) {
      const known = asked.value !== null && asked.threshold !== null;
      const whole = asked.unit === "share";
      const told = (value) => (whole ? share(value) : `${digits(value)} ${asked.unit}`);
      const most = whole ? 1 : Math.max(asked.value, asked.threshold) * 1.25 || 1;
      const meter = known && h("div", { class: "meter", role: "img", "aria-label": `${told(asked.value)}, threshold ${told(asked.threshold)}` },
        h("span", { style: `width:${percent(Math.min(asked.value / most, 1))}` }), h("i", { style: `left:${percent(asked.threshold / most)}` }));
      const chips = asked.checks.map((check) => h("li", { class: check === detail ? "named" : "" }, check));
      const yes = asked.answer === "yes", named = asked.branch === bottleneck;
      list.append(h("li", { class: `${yes ? "yes" : ""} ${named ? "named" : ""}`, "data-mark": yes ? "✓" : "–" },
        h("div", { class: "question" }, h("b", {}, asked.question), h("span", {}, known ? `${asked.answer}: ${told(asked.value)}, threshold ${told(asked.threshold)}` : asked.answer)),
        meter || null, h("div", { class: "soft" }, asked.metric),
        chips.length ? h("ul", { class: "chips", "aria-label": "What was found below this question" }, ...chips) : null));
    }
    box.append(list);
  },

  ranks(box, { ranks }) {
    const rows = ranks.map((rank) => {
      const exposed = rank.communication_exposed_s || 0, waits = Math.min(rank.wait_s || 0, exposed);
      const parts = [
        { key: "gpu", label: "kernels", s: rank.kernel_s },
        { key: "cpu", label: "other work of its own", s: Math.max(rank.step_s - exposed - rank.data_loader_s - rank.kernel_s, 0) },
        { key: "data_loader", label: "waits for data", s: rank.data_loader_s },
        { key: "communication", label: "collectives", s: exposed - waits },
        { key: "waits", label: "waits for other ranks", s: waits },
      ];
      return { rank, parts: parts.filter((part) => part.s > 0) };
    });
    const most = Math.max(...ranks.map((rank) => rank.step_s));
    for (const { rank, parts } of rows) {
      const last = rank.last_share ? `, last to ${rank.last} of collectives` : "";
      box.append(row(`rank ${rank.rank}`, stacked(parts, most), seconds(rank.step_s) + last));
    }
    box.append(legend([...new Map(rows.flatMap(({ parts }) => parts).map((part) => [part.key, part])).values()]));
  },

  source(box, { lines, patch, proven }) {
    for (const line of lines) {
      const code = line.code.map(([number, text]) =>
        h("span", { class: number === line.line ? "hot" : "", style: `--share:${percent(line.share)}` }, h("span", { class: "number" }, number), text));
      box.append(h("div", { class: "line" },
        h("div", { class: "place" }, h("code", {}, line.place + (line.function ? `  ${line.function}` : "")), h("span", {}, `${share(line.share)} ${line.told}`)),
        line.code.some(([, text]) => text) ? h("pre", { tabindex: 0 }, ...code) : null));
    }
    if (!patch) return;
    const told = proven ? "The recommended change, as a diff of the source" : "A change that could help; its gain is not proven";
    box.append(h("h3", {}, told), h("pre", { class: "diff", tabindex: 0 }, h("code", {}, patch)));
  },
};

// Buttons that move a view of time; the pictures of one clock move together.
function tools(of, view, show, all) {
  const zoom = (factor) => {
    const middle = (view.from + view.to) / 2, half = ((view.to - view.from) / 2) * factor;
    show(middle - half, middle + half);
  };
  const move = (part) => show(view.from + part * (view.to - view.from), view.to + part * (view.to - view.from));
  const button = (text, label, act) => {
    const made = h("button", { type: "button", "aria-label": `${label} ${of}` }, text);
    made.addEventListener("click", act);
    return made;
  };
  return h("div", { class: "tools", role: "group", "aria-label": `Zoom ${of}` },
    button("Zoom in", "Zoom into", () => zoom(0.5)), button("Zoom out", "Zoom out of", () => zoom(2)),
    button("←", "Earlier in", () => move(-0.3)), button("→", "Later in", () => move(0.3)), button("All", "All of", all));
}

const since = { label: "since the first", value: (_, value) => (value === null ? "" : `${digits(value)} s`) };
const clock = { plots: [], from: 0, to: 0, first: 0, last: 0 };
function showClock(from, to) {
  const long = Math.min(to - from, clock.last - clock.first);
  clock.from = Math.min(Math.max(from, clock.first), clock.last - long);
  clock.to = clock.from + long;
  for (const plot of clock.plots) plot.setScale("x", { min: clock.from, max: clock.to });
}
const dots = (label, tone, size) => ({
  label, stroke: () => colour(tone), paths: () => null, points: { show: true, size, fill: () => colour(tone), stroke: () => colour(tone) },
  value: (_, value) => (value === null || value === undefined ? "" : `${digits(value)} ms`),
});

function curve(box, name, values, series, height, { warm, log, zero, to, top }) {
  if (!clock.plots.length) {
    [clock.from, clock.to] = [Math.min(0, values[0][0]), to || values[0][values[0].length - 1]];
    [clock.first, clock.last] = [clock.from, clock.to];
  }
  if (!box.querySelector(".tools")) box.append(tools("this picture", clock, showClock, () => showClock(clock.first, clock.last)));
  box.append(h("p", { class: "panel-name" }, name));
  const place = h("div", { class: "curve", role: "img", "aria-label": name });
  box.append(place);
  const axis = { stroke: () => colour("--soft"), grid: { stroke: () => colour("--line"), width: 1 }, ticks: { stroke: () => colour("--line"), width: 1 }, font: "12px system-ui, sans-serif" };
  const plot = new uPlot({
    width: place.clientWidth, height, series,
    scales: { x: { time: false, min: clock.from, max: clock.to }, y: { distr: log ? 3 : 1, range: zero || (top && !log) ? (_, low, high) => [0, Math.max((top || high) * 1.08, 1e-3)] : undefined } },
    axes: [{ ...axis, values: (_, ticks) => ticks.map((tick) => `${digits(tick)} s`) }, { ...axis, size: 58, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : digits(tick))) }],
    cursor: { sync: { key: "clock" }, drag: { x: true, y: false, setScale: false } },
    hooks: {
      drawClear: [(drawn) => {
        if (!warm) return;
        const end = Math.min(drawn.valToPos(warm, "x", true), drawn.bbox.left + drawn.bbox.width);
        drawn.ctx.fillStyle = colour("--shade");
        if (end > drawn.bbox.left) drawn.ctx.fillRect(drawn.bbox.left, drawn.bbox.top, end - drawn.bbox.left, drawn.bbox.height);
      }],
      setSelect: [(drawn) => {
        if (drawn.select.width < 4) return;
        showClock(drawn.posToVal(drawn.select.left, "x"), drawn.posToVal(drawn.select.left + drawn.select.width, "x"));
        drawn.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
      }],
    },
  }, values, place);
  clock.plots.push(plot);
}

for (const [key, drawn] of Object.entries(figures)) {
  const box = document.querySelector(`#${key} .drawing`);
  drawings[key.split("-")[0]](box, drawn);
}

// Canvases know nothing of styles: they are drawn again where the colours or the width change.
const repaint = () => clock.plots.forEach((plot) => plot.redraw(false));
for (const query of ["(prefers-color-scheme: dark)", "print"]) matchMedia(query).addEventListener("change", repaint);
addEventListener("resize", () => clock.plots.forEach((plot) => plot.setSize({ width: plot.root.parentElement.clientWidth, height: plot.height })));
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((part) => (part.open = true)));

// Intervals in tables, on one axis for each table.
for (const table of document.querySelectorAll("table")) {
  const cells = [...table.querySelectorAll("[data-interval]")].map((cell) => [cell, cell.dataset.interval.split(" ").map(Number)]);
  if (!cells.length) continue;
  const axis = axisOf(cells.map(([, ends]) => ends));
  for (const [cell, ends] of cells) {
    const one = s("line", { class: "one", x1: percent(axis.at(1)), x2: percent(axis.at(1)), y1: 0, y2: 20 });
    cell.append(s("svg", { height: 20, class: "forest", role: "img", "aria-label": `interval ${ends[0].toFixed(2)} to ${ends[2].toFixed(2)}` }, one, ...interval(axis, ends, 10, "")));
  }
}

// Lines of a diff in their colours, and a button that copies for all that is to be copied.
for (const code of document.querySelectorAll("pre.diff code")) {
  const tone = (line) => (/^(@@|\+\+\+|---)/.test(line) ? "at" : line[0] === "+" ? "add" : line[0] === "-" ? "del" : "");
  code.copied = code.textContent;
  code.replaceChildren(...code.textContent.replace(/\n$/, "").split("\n").map((line) => h("span", { class: tone(line) }, line || " ")));
}
for (const code of document.querySelectorAll("pre.diff code, pre.shell code, pre.python code, p code")) {
  const button = h("button", { type: "button", class: "copy", "aria-label": "Copy these lines" }, "Copy");
  const text = code.copied || code.textContent;
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {  // a page of a file has no clipboard in some browsers: select it, for Ctrl-C
      getSelection().selectAllChildren(code);
    }
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  const block = code.parentElement;
  if (block.tagName === "PRE") block.before(h("div", { class: "tools copying" }, button));
  else code.after(" ", button);
}
