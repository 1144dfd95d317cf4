/* ---- maps of layers and experts; the function that page.js opens ends with this file ---- */

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const rgb = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
function between(stops, x) {
  const at = Math.max(0, Math.min(1, x)) * (stops.length - 1), i = Math.min(stops.length - 2, Math.floor(at));
  const c = stops[i].map((v, k) => Math.round(v + (at - i) * (stops[i + 1][k] - v)));
  return `rgb(${c[0]},${c[1]},${c[2]})`;
}

/* The numbers to print on an axis, at least `least` pixels apart. */
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

/* One stroke for an expert that received too few tokens, two for one that received none. */
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

/* Decode the texts of lib/page/pagefacts.h to indices of data.actions.  Masks are decoded in order, as
 * far as they are needed. */
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
  byId("widths-note").textContent = "Rows are layers and columns are experts; the slider above selects the member." +
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
    hint: "Point at a cell, or move with the arrow keys.",
  });
  const table = el("table", { id: "layers" });
  byId("widths-map").append(el("details", {}, el("summary", {}, "By layer, as a table"), table));
  drawn.push(() => table.replaceChildren(...layerTable()));
}

/* ---- tokens ---- */

/* A list of at most twelve experts, those with the fewest tokens first. */
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
  byId("tokens-note").textContent = "Number of token slots that calibration routed to each expert, as a multiple of an even " +
    "share of its layer. " + (bad.size ? "" : "Every expert received at least a tenth of an even share.");
  heatMap("tokens-map", {
    colours: () => ["--less", "--even", "--more"].map((name) => rgb(css(name))),
    value: (m, e) => (share(m, e) ? 0.5 + Math.log2(share(m, e)) / 6 : 0),
    mark: (m, e) => bad.get(m * E + e),
    low: "⅛ of an even share or less", high: "8 even shares or more",
    more: bad.size ? "; one stroke: starved, less than a tenth of an even share; two: no token" : null,
    label: () => "Tokens of " + many(E, "expert") + " in " + many(M, "layer") + "; " + data.starved.length +
      " received less than a tenth of an even share, " + data.unreached.length + " received none.",
    say: (m, e) => "Layer " + model.moe_layers[m] + ", expert " + e + ": " + data.tokens[m * E + e] + " tokens, " +
      share(m, e).toFixed(2) + " of an even share" + [", enough", ", starved", ", none at all"][bad.get(m * E + e) || 0],
    hint: "Point at a cell, or move with the arrow keys.",
  });
  if (data.starved.length)
    byId("tokens-map").append(el("p", {}, "Starved experts, whose scores are noise: " + listed(data.starved) + "."));
  if (data.unreached.length)
    byId("tokens-map").append(el("p", {}, "Experts that received no token: " + listed(data.unreached) + "."));
}

/* ---- history ---- */

/* Any JSON value as nested lists. */
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
  for (const [key, v] of entries) { // objects have their own line if the window is narrow
    const deep = v !== null && typeof v === "object" ? " deep" : "";
    list.append(el("dt", { class: "word" + deep }, key), el("dd", { class: deep.trim() }, tree(v)));
  }
  return list;
}

function history() {
  const place = byId("history");
  if (!data.origin) {
    place.append(el("p", {}, "The history is too long for this page. To print it: ",
      code("tar xOf " + quoted(data.file) + " manifest.json")));
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

/* ---- start ---- */

function redraw() { for (const draw of drawn) draw(); }

const slider = byId("slider");
slider.max = rows.length - 1;
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
const [first, why] = opening();
choose(first);
byId("opened").textContent = "The page opens at " + percent(rows[first].budget) + " removed: " + why +
  ". Use the slider to select another member.";
})();
