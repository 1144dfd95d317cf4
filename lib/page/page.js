
"use strict";
/*
 * Draws the page from its data, which is the JSON in #data (lib/page/pagefacts.h and its
 * neighbours say what is in it).  Words from files become text nodes and values of attributes that
 * do nothing, never markup.
 */
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const rows = data.budgets, model = data.model;
const M = model.moe_layers.length, E = model.experts;
const byId = (id) => document.getElementById(id);
const state = { at: 0, axis: 1, whole: false, form: 0 };
const drawn = []; // what is drawn again for another member or other colours

/* ---- elements and numbers ---- */

function make(space, tag, attributes, children) {
  const e = space ? document.createElementNS(space, tag) : document.createElement(tag);
  for (const [key, value] of Object.entries(attributes || {}))
    if (value !== null && value !== undefined && value !== false) e.setAttribute(key, value);
  for (const child of children) if (child !== null && child !== undefined) e.append(child);
  return e;
}
const el = (tag, attributes, ...children) => make(null, tag, attributes, children);
const svg = (tag, attributes, ...children) =>
  make("http://www.w3.org/2000/svg", tag, attributes, children);
const code = (text) => el("code", {}, text);

function bytes(n) { // as the tools print them: decimal units
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let u = 0;
  while (n >= 999.95 && u < 5) { n /= 1000; u++; }
  return (u ? n.toFixed(n < 99.95 ? 1 : 0) : n) + " " + units[u];
}
function count(n) {
  const units = ["", " K", " M", " G", " T"];
  let u = 0;
  while (n >= 9999.5 && u < 4) { n /= 1000; u++; }
  return (u ? n.toFixed(n < 99.95 ? 1 : 0) : String(n)) + units[u];
}
const many = (n, what, more) => n + " " + (n === 1 ? what : more || what + "s");
const percent = (x) => (100 * x).toFixed(1) + " %";
const loss = (x) => x.toFixed(4);

/* ---- what a card holds ---- */

function cacheBytes(tokens) { // lib/block/cost.c has the same
  const c = data.cache;
  return c.token * tokens + c.window_token * Math.min(tokens, c.window) + c.fixed;
}
function longest(space) { // the most tokens whose cache takes no more; Infinity: it does not grow
  const c = data.cache, all = c.token + c.window_token;
  if (space < c.fixed) return -1;
  const left = space - c.fixed;
  if (all > 0 && c.window > 0 && left < all * c.window) return Math.floor(left / all);
  if (c.token === 0) return Infinity;
  return Math.floor((left - c.window_token * c.window) / c.token);
}
const context = () => {
  const n = Math.floor(Number(byId("context").value));
  return Number.isFinite(n) && n >= 0 ? n : data.context;
};

/* ---- the head of the page ---- */

function fact(name, value) {
  byId("facts").append(el("div", {}, el("dt", {}, name), el("dd", { class: "word" }, value)));
}

function head() {
  const word = el("span", { class: "word" }, model.family);
  byId("title").replaceChildren(word, ": a family of pruned models");
  byId("about").replaceChildren(
    "From ", el("code", { class: "word" }, data.file), ", stage ", data.stage, ": ",
    many(data.budgets_all, "member"), ", one of which an export takes" +
    (rows.length < data.budgets_all ? "; " + rows.length + " of them are shown here" : "") + ".");
  fact("Parameters", count(model.params));
  fact("Layers", model.layers + (M < model.layers ? ", " + M + " with experts" : ""));
  fact("Experts", E + " a layer, " + model.experts_per_token + " per token");
  fact("Channels of an expert", String(model.channels));
  fact("Numbers", model.dtype + (model.storage ? ", stored as " + model.storage : ""));
  fact("Full size", bytes(rows[0].bytes));
  fact("Smallest member", bytes(rows[rows.length - 1].bytes));
  fact("This file", bytes(data.bytes));
  byId("made").replaceChildren("Made by fm-bench report ", data.version, ". Digest of the manifest: ",
    el("span", { class: "digest" }, data.manifest), ".");
}

/* ---- the member ---- */

/* Beyond it a budget costs more loss than the family does on average (lib/export/list.h). */
const isKnee = (row) => row.index === data.knee;

function describe(row) {
  let text = percent(row.budget) + " of channels removed, " + bytes(row.bytes);
  if (row.quality) text += ", CE " + loss(row.quality[0]) + (row.recovered ? " recovered" : "");
  return text;
}

function choose(at) {
  state.at = Math.max(0, Math.min(rows.length - 1, at));
  const slider = byId("slider"), row = rows[state.at];
  slider.value = state.at;
  slider.setAttribute("aria-valuetext", "member " + row.index + ", " + describe(row));
  byId("chosen").textContent = describe(row);
  for (const draw of drawn) draw();
}

/* ---- sizes, cards, the line ---- */

const formName = (i) => data.forms[i].name;
const ragged = Math.max(0, data.forms.findIndex((f) => f.name === "ragged"));

/* The form computes what the mask does, so the mask's figures are its own. */
const exact = (row, i) => data.forms[i].exact || row.forms[i][0] === row.forms[ragged][0];

function cardCell(tensors, card, served) {
  if (!served) return el("td", { class: "none" }, "–");
  const over = tensors + cacheBytes(context()) - card.space;
  if (over > 0) return el("td", { class: "over" }, "✗ " + bytes(over) + " over");
  const most = longest(card.space - tensors);
  const end = most >= data.context_most ? "all " + count(data.context_most) : count(most);
  return el("td", { class: "fits" }, "✓ " + end + " tokens");
}

/* What was measured of the exported directory itself comes first. */
function formQuality(row, i) {
  for (const set of data.figures)
    for (const s of set.exports ? set.series : [])
      for (const p of s.points)
        if (s.name === formName(i) && p[0] === row.budget) return el("td", {}, loss(p[2]));
  if (!row.quality) return el("td", { class: "none" }, "not measured");
  if (exact(row, i)) return el("td", {}, loss(row.quality[0]));
  return el("td", { class: "none" }, "wider: not measured");
}

function sizes() {
  const row = rows[state.at], table = byId("sizes");
  const top = el("tr", {}, el("th", { scope: "col" }, "Form"), el("th", { scope: "col" }, "Weights"),
    el("th", { scope: "col" }, "All files"), el("th", { scope: "col", class: "left" }, "Tensor-parallel"));
  for (const card of data.cards)
    top.append(el("th", { scope: "col" }, "Card of " + card.bytes / 1e9 + " GB"));
  top.append(el("th", { scope: "col" }, "Cross-entropy"));
  const body = el("tbody", {});
  row.forms.forEach((cells, i) => {
    const [tensors, files, degrees] = cells, served = data.forms[i].served;
    const line = el("tr", { class: i === state.form ? "chosen" : null },
      el("th", { scope: "row" }, formName(i)), el("td", {}, bytes(tensors)),
      el("td", {}, files ? bytes(files) : "–"), el("td", { class: "left" }, served ? degrees : "–"));
    for (const card of data.cards) line.append(cardCell(tensors, card, served));
    line.append(formQuality(row, i));
    body.append(line);
  });
  table.replaceChildren(el("thead", {}, top), body);
  byId("member").textContent = "Member " + row.index + ": " + describe(row) + "; experts are " + row.min +
    " to " + row.max + " channels wide, " + row.mean.toFixed(1) + " on average; " + count(row.params) +
    " parameters, " + count(row.params_active) + " active for a token." + (isKnee(row) ?
    " This is the knee of the family: beyond it, bytes cost more loss than they do on average." : "");
  const c = data.cache;
  byId("cards-note").textContent =
    "A GB of a card is 10⁹ bytes, and nine tenths of it are for weights and cache. Keys and values take " +
    bytes(c.token) + " for each token" +
    (c.window ? ", " + bytes(c.window_token) + " for each of the last " + c.window : "") +
    (c.fixed ? ", " + bytes(c.fixed) + " whatever the length" : "") + "; " +
    bytes(cacheBytes(context())) + " for " + many(context(), "token") +
    ". ✓ says how many tokens of one sequence have space; – is a form that no server reads.";
}

/* A word of a command line, as a shell takes it back. */
function quoted(word) {
  if (/^[A-Za-z0-9_.\/][A-Za-z0-9_.\/-]*$/.test(word)) return word;
  return "'" + (word.startsWith("-") ? "./" : "") + word.replace(/'/g, "'\\''") + "'";
}

function exportLine() {
  const row = rows[state.at], form = data.forms[state.form];
  const options = form.options + (form.capped ? String(row.budget) : "");
  byId("line").textContent = "fm-pack --export pruned-" + row.budget.toFixed(4) + " --mask " +
    row.index + " " + options + " " + quoted(data.file);
}

function exporting() {
  if (!data.packed) {
    byId("exporting").replaceChildren(el("h3", {}, "The export line"), el("p", {},
      "This stream has no weights yet: ", code("fm-pack --model DIR " + quoted(data.file) + " > family.fm"),
      " makes the bundle, from which exports are made."));
    return;
  }
  const select = byId("form");
  data.forms.forEach((f, i) => select.append(el("option", { value: i, selected: i === ragged }, f.name)));
  state.form = ragged;
  select.addEventListener("change", () => { state.form = Number(select.value); sizes(); exportLine(); });
  byId("copy").addEventListener("click", () => {
    const said = (text) => { byId("copied").textContent = text; };
    const line = byId("line");
    const mark = () => { getSelection().selectAllChildren(line); said("Selected: copy it by keyboard"); };
    if (!navigator.clipboard) return mark();
    navigator.clipboard.writeText(line.textContent).then(() => said("Copied"), mark);
  });
  drawn.push(exportLine);
}

/* ---- charts ---- */

const metrics = [
  { name: "Cross-entropy", unit: "nats per token, lower is better", at: 2, show: loss },
  { name: "Divergence (KL)", unit: "nats per token from the full model, lower is better", at: 3, show: loss },
  { name: "Top-1 agreement", unit: "tokens where it is the full model's, higher is better", at: 4, show: percent },
];
const dashes = ["", "7 3", "2 3", "9 3 2 3", "12 3", "4 4"];
const field = { width: 350, height: 245, left: 48, right: 10, top: 10, bottom: 38 };

/* Steps of 1, 2 or 5 times a power of ten, seven at the most. */
function ticks(low, high) {
  const span = high - low || Math.abs(high) || 1, power = 10 ** Math.floor(Math.log10(span / 6));
  const step = [1, 2, 5, 10].map((f) => f * power).find((s) => span / s <= 7);
  const out = [];
  for (let i = Math.ceil(low / step - 1e-9); i <= Math.floor(high / step + 1e-9); i++) out.push(i * step);
  return out;
}

/* Ends of an axis: of the family's own figures, so that a control that is far off does not flatten
 * them, or of all. */
function extent(series, at, own) {
  let low = Infinity, high = -Infinity;
  for (const s of series)
    for (const p of s.points) {
      if (p[at] === null) continue;
      if (own && s.role !== "family" && s.role !== "before" && s.role !== "after") continue;
      low = Math.min(low, p[at]);
      high = Math.max(high, p[at]);
    }
  return [low, high];
}

function yRange(set, series, metric) {
  const families = series.filter((s) => s.role !== "control" && s.role !== "rival");
  let [low, high] = extent(series, metric.at, !state.whole && families.length > 0);
  if (!state.whole && families.length === 0 && set.full && metric.at === 2)
    high = Math.min(high, 2 * set.full);
  if (!state.whole && families.length > 0) { // a quarter more for the others
    const [least, most] = extent(series, metric.at, false), more = 0.25 * (high - low || 0.1);
    if (metric.at === 4) low = Math.max(least, low - more);
    else high = Math.min(most, high + more);
    if (metric.at === 4) high = Math.max(high, most);
    else low = Math.min(low, least);
  }
  if (metric.at === 2 && set.full !== undefined) low = Math.min(low, set.full);
  if (!(high > low)) { low -= 0.05; high += 0.05; }
  const pad = 0.04 * (high - low);
  return [metric.at === 4 || low > 0 ? low - pad : low, metric.at === 4 ? Math.min(1, high + pad) : high + pad];
}

function marker(x, y, style, title) {
  const classes = "mark c" + (style % 8), shape = Math.floor(style / 8) % 3;
  const extra = title ? [svg("title", {}, title)] : [];
  if (shape === 1) return svg("rect", { x: x - 2.5, y: y - 2.5, width: 5, height: 5, class: classes + " hollow" }, ...extra);
  if (shape === 2) return svg("path", { d: `M${x} ${y - 3.5}l3.5 6h-7z`, class: classes + " hollow" }, ...extra);
  return svg("circle", { cx: x, cy: y, r: 2.5, class: classes + " f" + (style % 8) }, ...extra);
}

const axisText = (v) => (state.axis === 1 ? bytes(v) : (100 * v).toFixed(v && v < 0.01 ? 1 : 0) + " %");

function gridOf(scale, xs, ys, metric) {
  const g = svg("g", { "aria-hidden": "true" });
  const { left, top, width, height, right, bottom } = field;
  for (const v of xs) {
    g.append(svg("path", { d: `M${scale.x(v)} ${top}V${height - bottom}`, class: "grid" }));
    g.append(svg("text", { x: scale.x(v), y: height - bottom + 15, "text-anchor": "middle" }, axisText(v)));
  }
  for (const v of ys) {
    const text = metric.at === 4 ? (100 * v).toFixed(0) + " %" : String(+v.toPrecision(6));
    g.append(svg("path", { d: `M${left} ${scale.y(v)}H${width - right}`, class: "grid" }));
    g.append(svg("text", { x: left - 6, y: scale.y(v) + 4, "text-anchor": "end" }, text));
  }
  g.append(svg("path", { d: `M${left} ${top}V${height - bottom}H${width - right}`, class: "frame" }));
  g.append(svg("text", { x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" },
    state.axis === 1 ? "bytes of all tensors" : "share of channels removed"));
  return g;
}

function drawSeries(s, metric, scale, clip) {
  const g = svg("g", { "clip-path": `url(#${clip})` });
  const points = s.points.filter((p) => p[metric.at] !== null).sort((a, b) => a[state.axis] - b[state.axis]);
  g.append(svg("polyline", { class: "series c" + (s.style % 8), "stroke-dasharray": dashes[s.dash % dashes.length],
    points: points.map((p) => scale.x(p[state.axis]).toFixed(1) + "," + scale.y(p[metric.at]).toFixed(1)).join(" ") }));
  if (points.length <= 40)
    for (const p of points)
      g.append(marker(scale.x(p[state.axis]), scale.y(p[metric.at]), s.style,
        s.name + ": " + percent(p[0]) + " removed, " + bytes(p[1]) + ", " + metric.show(p[metric.at])));
  return g;
}

function chart(set, metric, number) {
  const figure = el("figure", {}, el("figcaption", {}, metric.name + " ", el("span", { class: "note" }, metric.unit)));
  const clip = "clip-" + set.number + "-" + number;
  const draw = () => {
    const series = set.series.filter((s) => s.on);
    const { left, top, width, height, right, bottom } = field;
    let [x0, x1] = extent(series.length ? series : set.series, state.axis, false);
    if (!(x1 > x0)) { x0 -= 0.5 * Math.abs(x0) || 0.5; x1 += 0.5 * Math.abs(x1) || 0.5; }
    const [y0, y1] = yRange(set, series.length ? series : set.series, metric);
    const scale = {
      x: (v) => left + ((v - x0) / (x1 - x0)) * (width - left - right),
      y: (v) => height - bottom - ((v - y0) / (y1 - y0)) * (height - top - bottom),
    };
    const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img",
      "aria-label": metric.name + " of " + set.title + " over " +
        (state.axis === 1 ? "bytes" : "the share of channels removed") + ": " +
        series.map((s) => s.name).join(", ") + ". The table behind the charts has the numbers." },
      svg("clipPath", { id: clip }, svg("rect", { x: left, y: top - 4, width: width - left - right + 4,
        height: height - top - bottom + 4 })),
      gridOf(scale, ticks(x0, x1), ticks(y0, y1), metric));
    if (metric.at === 2 && set.full !== undefined)
      picture.append(svg("path", { d: `M${left} ${scale.y(set.full)}H${width - right}`, class: "full" },
        svg("title", {}, "full model: " + loss(set.full))));
    for (const s of series) picture.append(drawSeries(s, metric, scale, clip));
    const row = rows[state.at], here = scale.x(state.axis === 1 ? row.bytes : row.budget);
    if (here >= left - 1 && here <= width - right + 1)
      picture.append(svg("path", { d: `M${here} ${top}V${height - bottom}`, class: "here" }));
    picture.addEventListener("click", (event) => pick(event, picture, x0, x1));
    if (figure.lastChild.namespaceURI === picture.namespaceURI) figure.lastChild.remove();
    figure.append(picture);
  };
  set.draws.push(draw);
  drawn.push(draw);
  return figure;
}

/* A click into a chart chooses the member that is nearest. */
function pick(event, picture, x0, x1) {
  const box = picture.getBoundingClientRect();
  const x = ((event.clientX - box.left) / box.width) * field.width;
  const v = x0 + ((x - field.left) / (field.width - field.left - field.right)) * (x1 - x0);
  let best = 0;
  const far = (row) => Math.abs((state.axis === 1 ? row.bytes : row.budget) - v);
  rows.forEach((row, i) => { if (far(row) < far(rows[best])) best = i; });
  choose(best);
}

function legend(set) {
  const list = el("ul", { class: "legend", "aria-label": "Series of " + set.title });
  for (const s of set.series) {
    const box = el("input", { type: "checkbox", checked: s.on });
    box.addEventListener("change", () => { s.on = box.checked; for (const draw of set.draws) draw(); });
    const line = svg("svg", { viewBox: "0 0 34 12", "aria-hidden": "true" },
      svg("path", { d: "M1 6H33", class: "series c" + (s.style % 8), "stroke-dasharray": dashes[s.dash % dashes.length] }),
      marker(17, 6, s.style));
    list.append(el("li", {}, el("label", {}, box, line, el("span", { class: "word" }, s.name))));
  }
  return list;
}

function numbers(set) {
  const body = el("tbody", {});
  for (const s of set.series)
    for (const p of s.points)
      body.append(el("tr", {}, el("th", { scope: "row", class: "word" }, s.name), el("td", {}, percent(p[0])),
        el("td", {}, bytes(p[1])), el("td", {}, loss(p[2])), el("td", {}, p[3] === null ? "–" : loss(p[3])),
        el("td", {}, p[4] === null ? "–" : percent(p[4])),
        el("td", { class: "left" }, p[5] || "")));
  const heads = ["Series", "Removed", "Bytes", "Cross-entropy", "KL", "Top-1", ""];
  return el("details", {}, el("summary", {}, "The numbers"),
    el("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Numbers of " + set.title },
      el("table", {}, el("thead", {}, el("tr", {}, ...heads.map((h) => el("th", { scope: "col" }, h)))), body)));
}

function costs(set) {
  const body = el("tbody", {});
  for (const s of set.series)
    if (s.seconds !== undefined)
      body.append(el("tr", {}, el("th", { scope: "row", class: "word" }, s.name), el("td", {}, s.seconds.toFixed(1)),
        el("td", {}, s.peak_bytes !== undefined ? bytes(s.peak_bytes) : "–")));
  if (!body.children.length) return null;
  return el("details", {}, el("summary", {}, "What each calibration took"),
    el("table", {}, el("thead", {}, el("tr", {}, ...["Series", "Seconds", "Memory at most"].map((h) =>
      el("th", { scope: "col" }, h)))), body));
}

/* Which series a chart does not show, since they are beyond the end of its axis. */
function beyond(set) {
  const p = el("p", { class: "note" });
  const draw = () => {
    const [low, high] = yRange(set, set.series, metrics[0]);
    const gone = set.series.filter((s) => s.on && s.points.length && s.points.every((q) => q[2] > high || q[2] < low));
    p.textContent = gone.length ? "Beyond the axis of cross-entropy: " + gone.map((s) => s.name).join(", ") + "." : "";
  };
  set.draws.push(draw);
  drawn.push(draw);
  return p;
}

function addSet(set, note) {
  set.draws = [];
  set.series.forEach((s, i) => {
    s.style = i % 24; // eight colours by three marks; dashes tell more apart
    s.dash = s.role === "family" || s.role === "after" ? 0 : s.role === "before" ? 1 : 1 + (i % 5);
    s.on = true;
  });
  if (set.series.length > 10) { // the family's, the defaults and the best of the others
    const mean = (s) => s.points.reduce((sum, p) => sum + p[2], 0) / s.points.length;
    const rest = set.series.filter((s) => s.role === "rival" && !s.name.endsWith("(default)"));
    const best = rest.slice().sort((a, b) => mean(a) - mean(b)).slice(0, 8);
    for (const s of rest) s.on = best.includes(s);
  }
  byId("sets").append(el("h3", {}, set.title), note && el("p", { class: "note" }, ...note));
  if (!set.series.some((s) => s.points.length)) {
    byId("sets").append(el("p", {}, "Nothing was measured."));
    return;
  }
  const has = metrics.filter((m) => set.series.some((s) => s.points.some((q) => q[m.at] !== null)));
  byId("sets").append(el("div", { class: "charts" }, ...has.map((m, i) => chart(set, m, i))),
    legend(set), beyond(set), numbers(set));
  const cost = costs(set);
  if (cost) byId("sets").append(cost);
}

function heldNote(set) {
  const files = set.files.flatMap((f, i) => [i ? ", " : "", el("code", { class: "word" }, f)]);
  const note = ["From ", ...files, set.files.length > 1 ? ", reports of " + set.tool : ", a report of " + set.tool];
  if (set.held) note.push("; held out: " + many(set.held[0], "sequence") + " of " + set.held[1] + " tokens");
  note.push(". Figures on other held-out tokens are not comparable.");
  return note;
}

const titles = {
  "fm-bench quality": "The family and its controls",
  "fm-bench rivals": "Rivals at equal bytes",
  "fm-train": "Masks of fm-train, before recovery",
  "fm-recover": "Before and after recovery",
};

function quality() {
  const measured = rows.filter((r) => r.quality);
  const own = { number: 0, title: "The bundle's own figures", series: [] };
  if (measured.length) {
    const recovered = measured.filter((r) => r.recovered).length;
    own.series.push({ name: recovered ? "family, recovered" : "family", role: "family",
      points: measured.map((r) => [r.budget, r.bytes, ...r.quality, r.method]) });
    addSet(own, ["Measured when the masks were made" + (recovered ? " and recovered" : "") +
      "; the layouts that keep each width have these figures at these bytes."]);
  } else {
    byId("sets").append(el("h3", {}, own.title), el("p", {}, "The bundle has none: ",
      code("fm-train --eval-tokens FILE"), " measures every member when it makes it."));
  }
  data.figures.forEach((set, i) => {
    set.number = i + 1;
    set.title = set.exports ? "Exported directories" : titles[set.tool];
    addSet(set, heldNote(set));
  });
  missing(measured);
}

/* What was not measured, and the command that does. */
function missing(measured) {
  const has = (tool) => data.figures.some((f) => f.tool === tool);
  const file = quoted(data.file), list = el("ul", {});
  const add = (what, command) => list.append(el("li", {}, what + ": ", code(command)));
  if (!has("fm-bench quality"))
    add("controls of equal budget", "fm-bench quality --eval-tokens FILE --report quality.json " + file);
  if (!has("fm-bench rivals"))
    add("other pruners' rules at equal bytes",
      "fm-bench rivals --model DIR --tokens FILE --eval-tokens FILE --report rivals.json " + file);
  if (!has("fm-recover"))
    add(measured.some((r) => r.recovered) ? "losses before recovery" : "recovery",
      "fm-recover --report recover.json …");
  if (!data.figures.some((f) => f.exports))
    add("layouts that round widths up", "fm-bench quality --eval-tokens FILE --report layer.json DIR");
  if (list.children.length)
    byId("sets").append(el("h3", {}, "Not measured, or not named with --figures"), list);
}

/* ---- maps of layers and experts ---- */

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const rgb = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
function between(stops, x) {
  const at = Math.max(0, Math.min(1, x)) * (stops.length - 1), i = Math.min(stops.length - 2, Math.floor(at));
  const c = stops[i].map((v, k) => Math.round(v + (at - i) * (stops[i + 1][k] - v)));
  return `rgb(${c[0]},${c[1]},${c[2]})`;
}

/* The numbers of an axis, not closer than `least` pixels. */
function steps(n, cell, least) {
  const step = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512].find((s) => s * cell >= least) || 1024;
  return Array.from({ length: Math.ceil(n / step) }, (_, i) => i * step);
}

function heatMap(place, options) {
  const canvas = el("canvas", { tabindex: "0", role: "application", "aria-roledescription": "heat map" });
  const readout = el("output", { class: "readout", "aria-live": "polite" });
  const scale = el("div", { class: "scale" });
  byId(place).append(scale, el("div", { class: "map" }, canvas), readout);
  const map = { cell: null, w: 8, h: 8, left: 40, bottom: 22 };
  const draw = () => {
    const wide = (byId(place).clientWidth || 800) - map.left - 6, ratio = window.devicePixelRatio || 1;
    map.w = Math.max(5, Math.min(36, Math.floor(wide / E)));
    map.h = Math.max(8, Math.min(22, Math.floor(560 / M)));
    const width = map.left + E * map.w + 4, height = M * map.h + map.bottom;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    canvas.style.width = width + "px";
    canvas.style.height = height + "px";
    const g = canvas.getContext("2d");
    g.scale(ratio, ratio);
    paint(g, map, options);
    canvas.setAttribute("aria-label", options.label() + " Arrow keys move from cell to cell.");
    legendOf(scale, options);
  };
  const say = () => { readout.textContent = map.cell ? options.say(map.cell[0], map.cell[1]) : options.hint; };
  const go = (m, e) => {
    map.cell = [Math.max(0, Math.min(M - 1, m)), Math.max(0, Math.min(E - 1, e))];
    draw();
    say();
  };
  canvas.addEventListener("keydown", (event) => {
    const [m, e] = map.cell || [0, 0];
    const moves = { ArrowUp: [m - 1, e], ArrowDown: [m + 1, e], ArrowLeft: [m, e - 1], ArrowRight: [m, e + 1],
      Home: [m, 0], End: [m, E - 1], PageUp: [0, e], PageDown: [M - 1, e] };
    if (!moves[event.key]) return;
    event.preventDefault();
    go(...(map.cell ? moves[event.key] : [0, 0]));
  });
  canvas.addEventListener("pointermove", (event) => {
    const m = Math.floor(event.offsetY / map.h), e = Math.floor((event.offsetX - map.left) / map.w);
    if (m >= 0 && m < M && e >= 0 && e < E) go(m, e);
  });
  say();
  drawn.push(() => { draw(); say(); });
}

function paint(g, map, options) {
  const gap = map.w > 7 && map.h > 7 ? 1 : 0, colours = options.colours(), back = css("--back"), bad = css("--bad");
  g.font = "11px system-ui, sans-serif";
  g.fillStyle = css("--dim");
  g.textBaseline = "middle";
  g.textAlign = "right";
  for (const m of steps(M, map.h, 14)) g.fillText(model.moe_layers[m], map.left - 6, (m + 0.5) * map.h);
  g.textAlign = "center";
  for (const e of steps(E, map.w, 26)) g.fillText(e, map.left + (e + 0.5) * map.w, M * map.h + 11);
  for (let m = 0; m < M; m++)
    for (let e = 0; e < E; e++) {
      const x = map.left + e * map.w, y = m * map.h;
      const mark = options.mark && options.mark(m, e);
      g.fillStyle = mark === 2 ? back : between(colours, options.value(m, e));
      g.fillRect(x, y, map.w - gap, map.h - gap);
      if (mark) cross(g, x, y, map.w - gap, map.h - gap, mark, bad);
    }
  if (!map.cell) return;
  g.strokeStyle = css("--focus");
  g.lineWidth = 2;
  g.strokeRect(map.left + map.cell[1] * map.w, map.cell[0] * map.h, map.w - gap, map.h - gap);
}

/* One stroke for an expert that saw too little, two for one that saw nothing. */
function cross(g, x, y, w, h, strokes, colour) {
  g.strokeStyle = colour;
  g.lineWidth = 1.5;
  g.beginPath();
  g.moveTo(x + 1, y + h - 1);
  g.lineTo(x + w - 1, y + 1);
  if (strokes > 1) { g.moveTo(x + 1, y + 1); g.lineTo(x + w - 1, y + h - 1); }
  g.stroke();
}

function legendOf(place, options) {
  const bar = el("canvas", { width: 160, height: 12, "aria-hidden": "true" });
  const g = bar.getContext("2d"), colours = options.colours();
  for (let x = 0; x < 160; x++) { g.fillStyle = between(colours, x / 159); g.fillRect(x, 0, 1, 12); }
  place.replaceChildren(el("span", {}, options.low), bar, el("span", {}, options.high),
    el("span", {}, options.more || ""));
}

/* ---- widths ---- */

/* The texts of lib/page/pagewidths.h, back to places in data.actions; each is made when it is
 * first asked for, from the nearest one before it. */
const signs = "-_.~+*/=!?$%^:;()[]|";
const masks = [];
function unpack(text, before) {
  const to = Uint16Array.from(before);
  let at = 0, skip = 0, high = 0;
  for (const c of text) {
    const place = signs.indexOf(c);
    if (c >= "0" && c <= "9") { skip = 10 * skip + Number(c); continue; }
    at += skip;
    skip = 0;
    if (place >= 0) { high = 52 * (place + 1); continue; }
    to[at++] = high + (c <= "Z" ? c.charCodeAt(0) - 65 : c.charCodeAt(0) - 71);
    high = 0;
  }
  return to;
}
function maskOf(i) {
  for (let k = masks.length; k <= i; k++)
    masks.push(unpack(data.masks[k], k ? masks[k - 1] : new Uint16Array(M * E).fill(data.actions.length - 1)));
  return masks[i];
}

function layerTable() {
  const body = el("tbody", {}), mask = maskOf(state.at);
  for (let m = 0; m < M; m++) {
    const w = Array.from(mask.subarray(m * E, m * E + E), (a) => data.actions[a]);
    body.append(el("tr", {}, el("th", { scope: "row" }, model.moe_layers[m]), el("td", {}, Math.min(...w)),
      el("td", {}, (w.reduce((a, b) => a + b, 0) / E).toFixed(1)), el("td", {}, Math.max(...w))));
  }
  return [el("thead", {}, el("tr", {}, ...["Layer", "Narrowest", "Mean", "Widest"].map((h) =>
    el("th", { scope: "col" }, h)))), body];
}

function widths() {
  if (!data.masks) {
    byId("widths-note").textContent = "The family has too many experts for a page of one megabyte.";
    return;
  }
  byId("widths-note").textContent = "Rows are layers, columns experts; the slider above chooses the member." +
    (data.granularity && data.granularity !== "expert" ? " It was trained with one width for each " + data.granularity + "." : "");
  const width = (m, e) => data.actions[maskOf(state.at)[m * E + e]];
  heatMap("widths-map", {
    colours: () => [0, 1, 2, 3, 4].map((i) => rgb(css("--heat" + i))),
    value: (m, e) => width(m, e) / model.channels,
    low: "0", high: model.channels + " channels",
    label: () => "Widths of " + many(E, "expert") + " in " + many(M, "layer") + " at " + percent(rows[state.at].budget) +
      " removed: " + rows[state.at].min + " to " + rows[state.at].max + " of " + model.channels + " channels.",
    say: (m, e) => "Layer " + model.moe_layers[m] + ", expert " + e + ": " + width(m, e) + " of " + model.channels +
      " channels (" + percent(width(m, e) / model.channels) + ")",
    hint: "Point at a cell, or walk with the arrow keys.",
  });
  const table = el("table", { id: "layers" });
  byId("widths-map").append(el("details", {}, el("summary", {}, "By layer, as a table"), table));
  drawn.push(() => table.replaceChildren(...layerTable()));
}

/* ---- tokens ---- */

/* The first of them, the fewest tokens first. */
function listed(all) {
  const places = all.slice().sort((a, b) => data.tokens[a] - data.tokens[b] || a - b);
  const few = places.slice(0, 12).map((i) => "layer " + model.moe_layers[Math.floor(i / E)] + " expert " + (i % E) +
    " (" + data.tokens[i] + ")");
  return few.join(", ") + (places.length > 12 ? ", and " + (places.length - 12) + " more" : "");
}

function tokens() {
  if (!data.tokens) {
    byId("tokens-note").textContent = "The family has too many experts for a page of one megabyte.";
    return;
  }
  const slots = Array.from({ length: M }, (_, m) => data.tokens.slice(m * E, m * E + E).reduce((a, b) => a + b, 0));
  const share = (m, e) => (slots[m] ? (data.tokens[m * E + e] * E) / slots[m] : 0);
  const bad = new Map([...data.starved.map((i) => [i, 1]), ...data.unreached.map((i) => [i, 2])]);
  byId("tokens-note").textContent = "How many token slots calibration routed to each expert, as a multiple of an even " +
    "share of its layer. " + (bad.size ? "" : "None is starved: every expert saw at least a tenth of an even share.");
  heatMap("tokens-map", {
    colours: () => ["--less", "--even", "--more"].map((name) => rgb(css(name))),
    value: (m, e) => (share(m, e) ? 0.5 + Math.log2(share(m, e)) / 6 : 0),
    mark: (m, e) => bad.get(m * E + e),
    low: "⅛ of an even share or less", high: "8 times it",
    more: bad.size ? "; one stroke: starved, less than a tenth of an even share; two: no token" : null,
    label: () => "Tokens of " + many(E, "expert") + " in " + many(M, "layer") + "; " + data.starved.length +
      " saw less than a tenth of an even share, " + data.unreached.length + " saw none.",
    say: (m, e) => "Layer " + model.moe_layers[m] + ", expert " + e + ": " + data.tokens[m * E + e] + " tokens, " +
      share(m, e).toFixed(2) + " of an even share" + [", enough", ", starved", ", none at all"][bad.get(m * E + e) || 0],
    hint: "Point at a cell, or walk with the arrow keys.",
  });
  if (data.starved.length)
    byId("tokens-map").append(el("p", {}, "Starved, their scores are noise: " + listed(data.starved) + "."));
  if (data.unreached.length)
    byId("tokens-map").append(el("p", {}, "Seen by no token: " + listed(data.unreached) + "."));
}

/* ---- history ---- */

/* Any JSON as nested lists of words. */
function tree(value) {
  if (value === null || typeof value !== "object") {
    const text = String(value);
    return el("span", { class: /^[0-9a-f]{32}$/.test(text) ? "digest word" : "word" }, text);
  }
  if (Array.isArray(value)) {
    if (value.every((v) => v === null || typeof v !== "object")) return tree(value.join(", "));
    return el("ol", {}, ...value.map((v) => el("li", {}, tree(v))));
  }
  const list = el("dl", { class: "tree" }), entries = Object.entries(value);
  if (!entries.length) return "none";
  for (const [key, v] of entries) { // deep ones have a line of their own where the window is narrow
    const deep = v !== null && typeof v === "object" ? " deep" : "";
    list.append(el("dt", { class: "word" + deep }, key), el("dd", { class: deep.trim() }, tree(v)));
  }
  return list;
}

function history() {
  const place = byId("history");
  if (!data.origin) {
    place.append(el("p", {}, "It is too long for this page: ",
      code("tar xOf " + quoted(data.file) + " manifest.json"), " prints it."));
    return;
  }
  const { model: origin, history: entries } = data.origin;
  const { shards, moe_layers: ignored, ...rest } = origin;
  const box = el("div", { class: "stage" }, el("h3", {}, "The checkpoint"), tree(rest));
  if (Array.isArray(shards))
    box.append(el("details", {}, el("summary", {}, many(shards.length, "weight file")), tree(shards)));
  place.append(box);
  for (const entry of entries) {
    const { tool, ...more } = entry;
    place.append(el("div", { class: "stage" }, el("h3", { class: "word" }, String(tool)), tree(more)));
  }
}

/* ---- together ---- */

function redraw() { for (const draw of drawn) draw(); }

const slider = byId("slider");
slider.max = rows.length - 1;
byId("context").value = data.context;
byId("context").addEventListener("input", sizes);
slider.addEventListener("input", () => choose(Number(slider.value)));
for (const radio of document.querySelectorAll("input[name=axis]"))
  radio.addEventListener("change", () => { state.axis = Number(radio.value); redraw(); });
byId("whole").addEventListener("change", () => { state.whole = byId("whole").checked; redraw(); });
head();
exporting();
drawn.push(sizes);
quality();
widths();
tokens();
history();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
addEventListener("resize", redraw);
addEventListener("beforeprint", () => { document.documentElement.classList.add("paper"); redraw(); });
addEventListener("afterprint", () => { document.documentElement.classList.remove("paper"); redraw(); });
const knee = rows.findIndex((r) => r.index >= data.knee); // -1 where there is none
choose(knee >= 0 ? knee : Math.floor(rows.length / 2));
})();
