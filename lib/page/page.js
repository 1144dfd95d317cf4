
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
  else if ("between" in row) text += ", CE about " + loss(row.between) + ", between measured members";
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
  if (!row.quality && exact(row, i) && "between" in row) return el("td", { class: "none" }, "~" + loss(row.between));
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

