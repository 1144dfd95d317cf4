#!/usr/bin/env python3
"""Check a page of fm-bench report without a browser.

    report.py PAGE BUNDLE [FIGURES...]   it must be well-formed, with the right digests in its policy and data that
                                         agree with the tools
    report.py --hostile PAGE             the strings of a forged bundle must be in it only as data
"""
import base64
import hashlib
import json
import re
import subprocess
import sys
from html.parser import HTMLParser

LIAR = "</script><script>alert(1)</script><!-- ]]> \u2028 \u202e & <img src=x onerror=alert(1)>"
EMPTY = {"meta", "input", "link", "img", "br"}


class Page(HTMLParser):
    """Checks the nesting of elements, and collects scripts, styles and attributes that could run code."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.raw, self.meta, self.faults = [], [], {}, []
        self.feed(text)
        self.close()
        if self.open:
            self.faults.append(f"never closed: {self.open}")

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name.startswith("on") or name == "style" or (value or "").startswith("javascript:"):
                self.faults.append(f"<{tag} {name}>")
            if name in ("src", "href", "action"):
                self.faults.append(f"<{tag} {name}={value}> leads out of the page")
        if tag == "meta":
            self.meta.update({dict(attributes).get("http-equiv"): dict(attributes).get("content")})
        if tag not in EMPTY:
            self.open.append(tag)
        if tag in ("script", "style"):
            self.raw.append([tag, dict(attributes).get("type"), ""])

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"</{tag}> closes nothing")

    def handle_data(self, data):
        if self.open and self.open[-1] in ("script", "style"):
            self.raw[-1][2] += data


def allowed(text):
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def read(path):
    text = open(path, encoding="utf-8").read()
    page = Page(text)
    kinds = [(tag, kind) for tag, kind, _ in page.raw]
    assert kinds == [("style", None), ("script", "application/json"), ("script", None)], kinds
    assert not page.faults, page.faults
    style, data, script = (raw for _, _, raw in page.raw)
    policy = dict(part.strip().split(" ", 1) for part in page.meta["Content-Security-Policy"].split(";"))
    assert policy == {"default-src": "'none'", "script-src": allowed(script), "style-src": allowed(style),
                      "base-uri": "'none'", "form-action": "'none'"}, policy
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|\bFunction\(", script)
    assert len(text.encode()) <= 1000000
    assert not re.search("[<>&\u2028\u2029\u202e]", data)
    return json.loads(data)


def widths_of(data):
    """Widths of every mask, (members, M E), by the rule of lib/page/pagefacts.h."""
    signs, n = "-_.~+*/=!?$%^:;()[]|", len(data["tokens"])
    mask, out = [len(data["actions"]) - 1] * n, []
    for text in data["masks"]:
        at = 0
        for number, sign, letter in re.findall(r"(\d+)|([-_.~+*/=!?$%^:;()\[\]|]?)([A-Za-z])", text):
            if number:
                at += int(number)
                continue
            low = ord(letter) - 65 if letter <= "Z" else ord(letter) - 71
            mask[at] = low + (52 * (signs.index(sign) + 1) if sign else 0)
            at += 1
        out.append([data["actions"][a] for a in mask])
    return out


def bundle_agrees(data, bundle):
    listed = json.loads(subprocess.run(["fm-pack", "--list", "--json", bundle], check=True,
                                       capture_output=True).stdout)
    model = listed["model"]
    names = [f["name"] for f in data["forms"]]
    assert [r["index"] for r in data["budgets"]] == [b["index"] for b in listed["budgets"]]
    for row, b, widths in zip(data["budgets"], listed["budgets"], widths_of(data)):
        for key in ("budget", "removed", "method", "bytes", "params", "params_active"):
            assert row[key] == b[key], key
        q = b["quality"]
        assert row["quality"] == (q and [q["ce"], q["kl"], q["agree"]])
        for name, (tensors, files, measured) in zip(names, row["forms"]):
            form = b["layouts"].get(name) or b["formats"][name.removeprefix("uniform ")]
            assert (tensors, files) == (form["tensors"], form.get("files", 0))
            assert measured == form.get("as_measured", False)
        assert sum(model["channels"] - w for w in widths) == b["removed"]
        assert (min(widths), max(widths)) == (b["widths"]["min"], b["widths"]["max"])
    assert data.get("recommended") == listed.get("recommended")
    first = listed["budgets"][0]["quality"]
    assert data.get("original_ce") == (first and first["ce"])
    assert len(data["tokens"]) == len(data["model"]["moe_layers"]) * model["experts"]


def halves(q):
    """The elements of a point after its agreement: null, and half the width of each interval."""
    ends = [q.get(key) for key in ("ce_interval", "kl_interval")]
    return (None, *(-1 if e is None else (e[1] - e[0]) / 2 for e in ends)) if ends[0] else ()


def figures_agree(data, paths):
    assert len(data["figures"]) == len(paths)
    for have, path in zip(data["figures"], paths):
        report = json.load(open(path))
        assert (have["tool"], have["files"]) == (report["tool"], [path.rsplit("/", 1)[-1]])
        if have.get("exports"):
            form = next(i for i, f in enumerate(data["forms"]) if f["name"] == report["layout"])
            row = next(r for r in data["budgets"] if r["budget"] == report["budget"])
            assert [s["points"] for s in have["series"]] == [
                [[report["budget"], row["forms"][form][0], report["ce"], None, None, *halves(report)]]]
            assert have["held"][2] == report["tokens"]
            continue
        want = sorted((q["budget"], q["ce"], q["kl"], q["agree"], *halves(q))
                      for row in report["rows"] for q in (row.get("cells") or row.values())
                      if isinstance(q, dict))
        assert sorted((p[0], *p[2:]) for s in have["series"] for p in s["points"]) == want
        full, last = data["budgets"][0], data["budgets"][-1]
        channel = (full["bytes"] - last["bytes"]) / last["budget"]
        assert all(abs(full["bytes"] - p[0] * channel - p[1]) < 0.5 for s in have["series"] for p in s["points"])


def main(arguments):
    if arguments[0] == "--hostile":
        text = json.dumps(read(arguments[1]), ensure_ascii=False)
        print(text.count(json.dumps(LIAR, ensure_ascii=False)[1:-1]), "hostile strings, as data")
        return
    data = read(arguments[0])
    bundle_agrees(data, arguments[1])
    figures_agree(data, arguments[2:])
    print(f"{len(data['budgets'])} members, {len(data['figures'])} files of figures: as the tools print them")


main(sys.argv[1:])
