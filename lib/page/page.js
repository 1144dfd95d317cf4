
"use strict";
/*
 * Draws the page from its data, the JSON in #data, which lib/page/page*.h document.  Strings from
 * files become text nodes and values of inert attributes, never markup.
 */
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const rows = data.budgets, model = data.model;
const M = model.moe_layers.length, E = model.experts;
const byId = (id) => document.getElementById(id);
const state = { at: 0, axis: 1, whole: false, form: 0 };
const drawn = []; // functions that draw again, for another member or other colours

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

function bytes(n) { // in decimal units, as the tools print them
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

/* ---- GPU memory ---- */

function cacheBytes(tokens) { // the same formula as in lib/export/runtimes.c
  const c = data.cache;
  return c.token * tokens + c.window_token * Math.min(tokens, c.window) + c.fixed;
}
function longest(space) { // the most tokens whose cache fits in space: -1 none, Infinity if it does not grow
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
    many(data.budgets_all, "member") + ", any of which can be exported" +
    (rows.length < data.budgets_all ? "; " + rows.length + " of them are shown here" : "") + ".");
  fact("Parameters", count(model.params));
  fact("Layers", model.layers + (M < model.layers ? ", " + M + " with experts" : ""));
  fact("Experts", E + " per layer, " + model.experts_per_token + " per token");
  fact("Channels of an expert", String(model.channels));
  fact("Number type", model.dtype + (model.storage ? ", stored as " + model.storage : ""));
  fact("Checkpoint's weight files", bytes(data.source));
  fact("Smallest member", bytes(rows[rows.length - 1].bytes));
  fact("This file", bytes(data.bytes));
  byId("made").replaceChildren("Made by fm-bench report ", data.version, ". Digest of the manifest: ",
    el("span", { class: "digest" }, data.manifest), ".");
}

/* ---- the member ---- */

/* The smallest member that agrees with the full model often enough (lib/export/list.h). */
const isRecommended = (row) => row.index === data.recommended;
const agreeing = () => "the most probable next token of the full model for at least " +
  (100 * data.agreement).toFixed(0) + " % of tokens";

/* A relative change as text: "+2.4 %". */
const change = (x) => (x < 0 ? "−" : "+") + Math.abs(100 * x).toFixed(1) + " %";
const full = data.original_ce;
const lossChange = (ce) => (full > 0 ? " (" + change(ce / full - 1) + ")" : "");

function describe(row) {
  let text = percent(row.budget) + " of channels removed, " + bytes(row.bytes);
  if (row.quality) text += ", CE " + loss(row.quality[0]) + lossChange(row.quality[0]) + (row.recovered ? " recovered" : "");
  else if ("between" in row)
    text += ", CE about " + loss(row.between) + lossChange(row.between) + ", interpolated between measured members";
  return text;
}

/* The member compared with the model that it is made from. */
function beside(row) {
  let text = "Compared with the full model: tensors of " + bytes(row.bytes) + " instead of " + bytes(rows[0].bytes) + " (" +
    change(row.bytes / rows[0].bytes - 1) + "), " + count(row.params_active) + " active parameters instead of " +
    count(rows[0].params_active) + " (" + change(row.params_active / rows[0].params_active - 1) + ")";
  const ce = row.quality ? row.quality[0] : row.between;
  if (full > 0 && ce !== undefined)
    text += ", a cross-entropy of " + (row.quality ? "" : "about ") + loss(ce) + " instead of " + loss(full) + lossChange(ce);
  if (row.quality)
    text += ". Its divergence from the full model is " + loss(row.quality[1]) + "; for " + percent(row.quality[2]) +
      " of tokens both have the same most probable next token";
  return text + ".";
}

/* The member with which the page opens, and why.  In order of preference: the largest that fits a
 * GPU that is too small for the full model, the recommended one, the full model if the losses of
 * smaller ones were measured, the middle. */
function opening() {
  for (const card of data.cards.slice().reverse()) {
    const first = rows.findIndex((row) => row.bytes + cacheBytes(context()) <= card.space);
    if (first > 0)
      return [first, "it is the largest member that fits a GPU of " + card.bytes / 1e9 + " GB with a cache of " +
        many(context(), "token") + "; the full model does not fit"];
  }
  const last = rows.findLastIndex((row) => row.index <= data.recommended); // -1 if none is recommended
  if (last >= 0) return [last, "it is the smallest member that has " + agreeing()];
  if (rows.some((row) => row.quality)) return [0, "no smaller member that was measured has " + agreeing()];
  return [Math.floor(rows.length / 2), "it is the middle one; no losses were measured"];
}

function choose(at) {
  state.at = Math.max(0, Math.min(rows.length - 1, at));
  const slider = byId("slider"), row = rows[state.at];
  slider.value = state.at;
  slider.setAttribute("aria-valuetext", "member " + row.index + ", " + describe(row));
  byId("chosen").textContent = describe(row);
  for (const draw of drawn) draw();
}

/* ---- sizes, GPUs, the command ---- */

const formName = (i) => data.forms[i].name;
const ragged = Math.max(0, data.forms.findIndex((f) => f.name === "ragged"));

/* True if the form computes what the mask does, so that the mask's figures apply to it. */
const exact = (row, i) => row.forms[i][3];

function cardCell(tensors, card, served) {
  if (!served) return el("td", { class: "none" }, "–");
  const over = tensors + cacheBytes(context()) - card.space;
  if (over > 0) return el("td", { class: "over" }, "✗ " + bytes(over) + " over");
  const most = longest(card.space - tensors);
  const end = most >= data.context_most ? "all " + count(data.context_most) : count(most);
  return el("td", { class: "fits" }, "✓ " + end);
}

/* A measurement of the exported directory itself takes precedence over the mask's. */
function formQuality(row, i) {
  const held = heldEntry();
  for (const set of data.figures)
    for (const s of set.exports ? set.series : [])
      for (const p of s.points)
        if (s.name === formName(i) && p[0] === row.budget)
          return el("td", {}, loss(p[2]) + (held && held.held_out.digest === set.digest ? "" : ", on other tokens"));
  if (!row.quality && exact(row, i) && "between" in row) return el("td", { class: "none" }, "~" + loss(row.between));
  if (!row.quality) return el("td", { class: "none" }, "not measured");
  if (exact(row, i)) return el("td", {}, loss(row.quality[0]));
  return el("td", { class: "none" }, "not measured");
}

function sizes() {
  const row = rows[state.at], table = byId("sizes");
  const top = el("tr", {}, el("th", { scope: "col" }, "Layout"), el("th", { scope: "col" }, "Weights"),
    el("th", { scope: "col" }, "All files"), el("th", { scope: "col" }, "Relative to the checkpoint"),
    el("th", { scope: "col" }, "Cross-entropy"), el("th", { scope: "col", class: "left" }, "Tensor parallel"));
  for (const card of data.cards)
    top.append(el("th", { scope: "col" }, "GPU of " + card.bytes / 1e9 + " GB"));
  top.append(el("th", { scope: "col", class: "left" }, "Runs in"));
  const body = el("tbody", {});
  row.forms.forEach((cells, i) => {
    const [tensors, files, degrees] = cells, served = data.forms[i].served;
    const line = el("tr", { class: i === state.form ? "chosen" : null },
      el("th", { scope: "row" }, formName(i)), el("td", {}, bytes(tensors)),
      el("td", {}, files ? bytes(files) : "–"),
      el("td", { class: isLarger(cells) ? "over" : null }, change(sizeOf(cells) / data.source - 1)),
      formQuality(row, i), el("td", { class: "left" }, served ? degrees : "–"));
    for (const card of data.cards) line.append(cardCell(tensors, card, served));
    line.append(el("td", { class: "left words" }, data.forms[i].runs.join(", ")));
    body.append(line);
  });
  table.replaceChildren(el("thead", {}, top), body);
  byId("member").textContent = "Member " + row.index + ": " + describe(row) + "; experts are " + row.min +
    " to " + row.max + " channels wide, " + row.mean.toFixed(1) + " on average; " + count(row.params) +
    " parameters, " + count(row.params_active) + " active for a token." + (isRecommended(row) ?
    " It is recommended: the smallest member that has " + agreeing() + "." : "");
  byId("change").textContent = beside(row);
  byId("larger-note").textContent = larger(row);
  const c = data.cache;
  byId("cards-note").textContent =
    "One GB is 10⁹ bytes. Nine tenths of a GPU's memory are assumed to be available for weights and cache. Keys and values take " +
    bytes(c.token) + " for each token" +
    (c.window ? ", " + bytes(c.window_token) + " for each of the last " + c.window + " tokens" : "") +
    (c.fixed ? ", " + bytes(c.fixed) + " whatever the length" : "") + ": " +
    bytes(cacheBytes(context())) + " for " + many(context(), "token") +
    ". The number after ✓ is the longest sequence that fits, in tokens; – marks a layout that no server can load.";
}

/* The bytes of all files, or only of the tensors if files were not counted.  A form counts as larger
 * than the checkpoint only if names and headers cannot be the reason (lib/export/plan.h). */
const sizeOf = (cells) => cells[1] || cells[0];
const isLarger = (cells) => sizeOf(cells) > 1.02 * data.source;

/* The forms that are larger than the checkpoint, with the budget from which they are smaller. */
function larger(row) {
  const said = row.forms.flatMap((cells, i) => {
    if (!isLarger(cells)) return [];
    const first = rows.find((r) => sizeOf(r.forms[i]) < data.source);
    return [formName(i) + (first ? " (smaller from " + percent(first.budget) + " on)" : " (at every budget)")];
  });
  const tensors = data.packed ? " (for rounded formats, only of the tensors)" : " (only of the tensors)";
  return "Relative to the checkpoint: the size of all files" + tensors + " compared with the checkpoint's weight files, " + bytes(data.source) +
    ". " + (said.length ? "Larger than the checkpoint: " + said.join(", ") + "." : "No layout is larger than the checkpoint.");
}

/* For each reason why a program does not run some forms, list these forms. */
function programs() {
  const why = new Map(), place = byId("programs-note");
  data.forms.forEach((f) => f.runs_not.forEach((text) => why.set(text, [...(why.get(text) || []), f.name])));
  for (const [text, names] of why) place.append(el("li", {}, names.join(", ") + ": not in " + text + "."));
  place.append(el("li", {}, "Which programs run a layout is documented in fm-clients(7) and fm-guide(7), for transformers 5.23, " +
    "vLLM 0.32 and SGLang 0.5.23. Nothing was run on a GPU; of the rounded formats, fp8-block and w4a16 were run in vLLM, on a CPU. " +
    "fm_sglang is the suite's package for SGLang."));
}

/* A word of a command line, quoted for the shell if necessary. */
function quoted(word) {
  if (/^[A-Za-z0-9_.\/][A-Za-z0-9_.\/-]*$/.test(word)) return word;
  return "'" + (word.startsWith("-") ? "./" : "") + word.replace(/'/g, "'\\''") + "'";
}

function exportLine() {
  const row = rows[state.at], form = data.forms[state.form];
  const options = form.options + (form.capped ? String(row.budget) : "");
  const budget = row.budget.toFixed(4);
  byId("line").textContent = "fm-pack --export pruned-" + budget + " --budget " + budget + " " +
    options + " " + quoted(data.file);
}

function exporting() {
  if (!data.packed) {
    byId("exporting").replaceChildren(el("h3", {}, "Command to export it"), el("p", {},
      "This stream has no weights. To make a bundle, from which members can be exported: ",
      code("fm-pack --model DIR " + quoted(data.file) + " > family.fm")));
    return;
  }
  const select = byId("form");
  data.forms.forEach((f, i) => select.append(el("option", { value: i, selected: i === ragged }, f.name)));
  state.form = ragged;
  select.addEventListener("change", () => { state.form = Number(select.value); sizes(); exportLine(); });
  byId("copy").addEventListener("click", () => {
    const said = (text) => { byId("copied").textContent = text; };
    const line = byId("line");
    const mark = () => { getSelection().selectAllChildren(line); said("Selected; copy it with the keyboard"); };
    if (!navigator.clipboard) return mark();
    navigator.clipboard.writeText(line.textContent).then(() => said("Copied"), mark);
  });
  drawn.push(exportLine);
}

