/* ---- charts; inside the function that page.js opens ---- */

const metrics = [
  { name: "Cross-entropy", unit: "nats per token, lower is better", at: 2, show: loss },
  { name: "Divergence (KL)", unit: "from the full model, lower is better", at: 3, show: loss },
  { name: "Top-1 agreement", unit: "with the full model, higher is better", at: 4, show: percent },
];
const dashes = ["", "7 3", "2 3", "9 3 2 3", "12 3", "4 4"];
const field = { width: 350, height: 245, left: 48, right: 10, top: 10, bottom: 38 };

/* At most seven steps of 1, 2 or 5 times a power of ten. */
function ticks(low, high) {
  const span = high - low || Math.abs(high) || 1, power = 10 ** Math.floor(Math.log10(span / 6));
  const step = [1, 2, 5, 10].map((f) => f * power).find((s) => span / s <= 7);
  const out = [];
  for (let i = Math.ceil(low / step - 1e-9); i <= Math.floor(high / step + 1e-9); i++) out.push(i * step);
  return out;
}

/* The ends of an axis: over all points, or, if `own`, only over the family's, so that a distant
 * control does not flatten them. */
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
  const families = series.filter((s) => s.role !== "control" && s.role !== "baseline");
  let [low, high] = extent(series, metric.at, !state.whole && families.length > 0);
  if (!state.whole && families.length === 0 && set.full && metric.at === 2)
    high = Math.min(high, 2 * set.full);
  if (!state.whole && families.length > 0) { // a quarter more for the other series
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
        series.map((s) => s.name).join(", ") + ". The table after the charts has all points." },
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

/* A click on a chart selects the nearest member. */
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
    const text = meaning(set, s);
    list.append(el("li", {}, el("label", {}, box, line, el("span", { class: "word" }, s.name,
      text && el("span", { class: "note" }, ": " + text)))));
  }
  return list;
}

const half = (width) => (width >= 0 ? " ± " + loss(width) : "");

function numbers(set) {
  const body = el("tbody", {});
  for (const s of set.series)
    for (const p of s.points)
      body.append(el("tr", {}, el("th", { scope: "row", class: "word" }, s.name), el("td", {}, percent(p[0])),
        el("td", {}, bytes(p[1])), el("td", {}, loss(p[2]) + half(p[6])),
        el("td", {}, p[3] === null ? "–" : loss(p[3]) + half(p[7])),
        el("td", {}, p[4] === null ? "–" : percent(p[4])),
        el("td", { class: "left" }, p[5] || "")));
  const heads = ["Series", "Removed", "Bytes", "Cross-entropy", "KL", "Top-1", ""];
  return el("details", {}, el("summary", {}, "All points, as a table"),
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
  return el("details", {}, el("summary", {}, "Cost of each calibration"),
    el("table", {}, el("thead", {}, el("tr", {}, ...["Series", "Seconds", "Peak memory"].map((h) =>
      el("th", { scope: "col" }, h)))), body));
}

/* Name the series whose points are all outside the vertical axis. */
function beyond(set) {
  const p = el("p", { class: "note" });
  const draw = () => {
    const [low, high] = yRange(set, set.series, metrics[0]);
    const gone = set.series.filter((s) => s.on && s.points.length && s.points.every((q) => q[2] > high || q[2] < low));
    p.textContent = gone.length ? "Outside the range of the cross-entropy axis: " + gone.map((s) => s.name).join(", ") + "." : "";
  };
  set.draws.push(draw);
  drawn.push(draw);
  return p;
}

function addSet(set, note) {
  set.draws = [];
  set.series.forEach((s, i) => {
    s.style = i % 24; // eight colours by three marks; dashes distinguish more
    s.dash = s.role === "family" || s.role === "after" ? 0 : s.role === "before" ? 1 : 1 + (i % 5);
    s.on = true;
  });
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

/* Descriptions of series, by the names that the tools give them. */
const meanings = {
  "family": "the members of this family",
  "family, recovered": "the members, with the adapter of fm-recover merged",
  "uniform": "one width for all experts, their channels in the order of the ranking",
  "shuffle-layer": "the family's widths, shuffled among the experts of each layer",
  "shuffle-global": "the family's widths, shuffled among the experts of all layers",
  "saliency": "masks by the scores of channels",
  "learned": "masks trained by gradients through random widths",
  "exchange": "masks whose widths are exchanged as long as the divergence falls",
  "before": "the masks, before recovery",
  "after": "the same with the adapter of fm-recover",
  "reap": "whole experts removed, by router weight times output norm (REAP)",
  "frequency": "whole experts removed, those with the fewest tokens first",
  "random": "whole experts removed at random, the mean of five draws",
};
function meaning(set, s) {
  const form = set.exports && data.forms.find((f) => f.name === s.name);
  if (form)
    return "exports made by " + form.options + (form.name.startsWith("uniform ") ? ": one width, experts rounded" : "");
  return meanings[s.name] || null;
}

function heldNote(set) {
  const files = set.files.flatMap((f, i) => [i ? ", " : "", el("code", { class: "word" }, f)]);
  const note = ["From ", ...files, set.files.length > 1 ? ", reports of " + set.tool : ", a report of " + set.tool];
  if (set.held) note.push("; held out: " + many(set.held[0], "sequence") + " of " + set.held[1] + " tokens");
  if (set.held && set.held.length > 2)
    note.push("; " + many(set.held[2], "token") + " predicted; ± is half the width of a 95 % interval over sequences");
  note.push(". Figures on other held-out tokens are not comparable.");
  return note;
}

const titles = {
  "fm-bench quality": "The family and its controls",
  "fm-bench baselines": "Baselines at equal bytes",
  "fm-train": "Masks of fm-train, before recovery",
  "fm-recover": "Before and after recovery",
};

/* The entry of the bundle's history that describes the held-out tokens of its losses. */
function heldEntry() {
  const entries = data.origin ? data.origin.history : [];
  const isMeasured = (e) => e.held_out && typeof e.held_out === "object" && (e.tool === "fm-train" || e.tool === "fm-recover");
  return entries.filter(isMeasured).pop();
}

function heldOut() {
  const entry = heldEntry();
  let text = "Losses are means over held-out tokens, in nats; lower is better. ";
  if (entry) {
    const h = entry.held_out, from = h.sources;
    const one = (s) => (s.kind ? s.kind + ": " : "") + many(s.used, "token") + ", format " + s.format + (s.documents ? ", " + many(s.documents, "document") : "");
    text += "The bundle's own losses were measured on " + many(h.sequences, "sequence") + " of " + many(h.seq_len, "token") + " (" +
      h.positions + " predictions), " + (Array.isArray(from)
        ? "from separate data (" + from.filter((s) => s && typeof s === "object").map(one).join("; ") + ")"
        : "the end of the calibration data, which was not used to rank or train") +
      "; the digest of the token ids is " + h.digest + ". ";
  }
  return text + "The dashed vertical line is the selected member; click on a chart to select another" +
    (full === undefined ? "." : "; the dotted horizontal line is the full model's loss, " + loss(full) + ".");
}

function quality() {
  byId("held").textContent = heldOut();
  const measured = rows.filter((r) => r.quality);
  const own = { number: 0, title: "The bundle's own figures", full, series: [] };
  if (measured.length) {
    const recovered = measured.filter((r) => r.recovered).length;
    own.series.push({ name: recovered ? "family, recovered" : "family", role: "family",
      points: measured.map((r) => [r.budget, r.bytes, ...r.quality, r.method]) });
    addSet(own, ["Measured when the masks were made" + (recovered ? " and recovered" : "") +
      ". These figures apply to layouts that keep the width of every expert; bytes are those of such a layout."]);
  } else {
    byId("sets").append(el("h3", {}, own.title), el("p", {}, "The bundle has no figures: ",
      code("fm-train --eval-tokens FILE"), " measures every member that it makes."));
  }
  data.figures.forEach((set, i) => {
    set.number = i + 1;
    set.title = set.exports ? "Exported directories" : titles[set.tool];
    const entry = set.exports && heldEntry();
    if (entry && entry.held_out.digest === set.digest && own.series.length) { // beside the family, on the same tokens
      const family = own.series[0];
      set.series.unshift({ ...family, points: family.points.map((p) => [...p.slice(0, 3), null, null]) });
      set.full = full;
    }
    addSet(set, heldNote(set));
  });
  missing(measured);
}

/* The measurements that are missing, each with the command that makes it. */
function missing(measured) {
  const has = (tool) => data.figures.some((f) => f.tool === tool);
  const file = quoted(data.file), list = el("ul", {});
  const add = (what, command) => list.append(el("li", {}, what + ": ", code(command)));
  if (!has("fm-bench quality"))
    add("controls of equal budget", "fm-bench quality --eval-tokens FILE --json " + file + " >quality.json");
  if (!has("fm-bench baselines"))
    add("other pruners' rules at equal bytes",
      "fm-bench baselines --model DIR --tokens FILE --eval-tokens FILE --json " + file + " >baselines.json");
  if (!has("fm-recover"))
    add(measured.some((r) => r.recovered) ? "losses before recovery" : "recovery",
      "fm-recover --json … >recover.json");
  if (!data.figures.some((f) => f.exports))
    add("layouts that round widths up", "fm-bench quality --eval-tokens FILE --json DIR >layer.json");
  if (list.children.length)
    byId("sets").append(el("h3", {}, "Not measured, or not given with --figures"), list);
}

