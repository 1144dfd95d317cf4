
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

/* The member with which the page opens, and why.  In order of preference: the recommended one, the
 * full model if the losses of smaller ones were measured, the middle. */
function opening() {
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

/* ---- sizes, the command ---- */

const formName = (i) => data.forms[i].name;
const ragged = Math.max(0, data.forms.findIndex((f) => f.name === "ragged"));

/* True if the form computes what the mask does, so that the mask's figures apply to it. */
const exact = (row, i) => row.forms[i][2];

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
    el("th", { scope: "col" }, "Cross-entropy"));
  const body = el("tbody", {});
  row.forms.forEach((cells, i) => {
    const [tensors, files] = cells;
    body.append(el("tr", { class: i === state.form ? "chosen" : null },
      el("th", { scope: "row" }, formName(i)), el("td", {}, bytes(tensors)),
      el("td", {}, files ? bytes(files) : "–"),
      el("td", { class: isLarger(cells) ? "over" : null }, change(sizeOf(cells) / data.source - 1)),
      formQuality(row, i)));
  });
  table.replaceChildren(el("thead", {}, top), body);
  byId("member").textContent = "Member " + row.index + ": " + describe(row) + "; experts are " + row.min +
    " to " + row.max + " channels wide, " + row.mean.toFixed(1) + " on average; " + count(row.params) +
    " parameters, " + count(row.params_active) + " active for a token." + (isRecommended(row) ?
    " It is recommended: the smallest member that has " + agreeing() + "." : "");
  byId("change").textContent = beside(row);
  byId("larger-note").textContent = larger(row);
}

/* The bytes of all files, or only of the tensors if files were not counted.  A form counts as larger
 * than the checkpoint only if names and headers cannot be the reason (lib/export/planned.h). */
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

