#!/usr/bin/env python3
"""Test the page of fm-bench report in a browser: headless Chromium, controlled over a pipe.

The slider, the maps and the form for the export command are operated with the keyboard, and the text of the
page is compared with what the tools print with --json.  Every control and picture must have a name for
screen readers.  The page must fetch nothing, and a script in a hostile bundle must not run.  Screenshots
are written to $FM_JUDGE_SHOTS (default: build/judge-page) for inspection.
"""
import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "golden/tiny-mixtral"
SOURCE = (MODEL / "model.safetensors").stat().st_size
LIAR = "</script><script>window.ran = 1</script><!-- & <img src=x onerror='window.ran = 1'>"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


class Browser:
    """A browser controlled by the DevTools protocol: it reads JSON messages, each followed by a NUL, from
    descriptor 3, and writes its answers to descriptor 4."""

    def __init__(self, program, profile):
        commands, self.to = os.pipe()
        self.back, answers = os.pipe()

        def place():  # move both to other numbers first, so that neither overwrites the other
            a, b = os.dup(commands), os.dup(answers)
            os.dup2(a, 3)
            os.dup2(b, 4)

        self.process = subprocess.Popen(
            [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe",
             f"--user-data-dir={profile}", "--no-first-run", "about:blank"],
            preexec_fn=place, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(commands)
        os.close(answers)
        self.number, self.rest, self.events, self.session = 0, b"", [], None

    def read(self):
        while b"\0" not in self.rest:
            more = os.read(self.back, 1 << 20)
            if not more:
                sys.exit("pagejudge: the browser ended")
            self.rest += more
        line, self.rest = self.rest.split(b"\0", 1)
        return json.loads(line)

    def ask(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.read()
            if answer.get("id") == self.number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self.events.append(answer)

    def open(self, path):
        """Open a page, and discard the events of the previous page."""
        self.session = None
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self.ask(domain + ".enable")
        self.events.clear()
        self.ask("Page.navigate", url=path.resolve().as_uri())
        while not any(e.get("method") == "Page.loadEventFired" for e in self.events):
            self.events.append(self.read())

    def run(self, script):
        answer = self.ask("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def key(self, name, times=1):
        codes = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "End": 35, "Home": 36,
                 "Tab": 9}
        for _ in range(times):
            for kind in ("keyDown", "keyUp"):
                self.ask("Input.dispatchKeyEvent", type=kind, key=name, code=name,
                         windowsVirtualKeyCode=codes[name])

    def text(self, selector):
        return self.run(f"document.querySelector({json.dumps(selector)}).textContent")

    def complaints(self):
        """Exceptions, violations of the security policy, dialogs, and requests for anything but the page."""
        out = []
        for e in self.events:
            params = e.get("params", {})
            if e.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded", "Page.javascriptDialogOpening"):
                out.append(params)
            if e.get("method") == "Network.requestWillBeSent" and params.get("type") != "Document":
                out.append(params["request"]["url"])
        return out

    def picture(self, path, width, dark):
        self.ask("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.run("dispatchEvent(new Event('resize')); scrollTo({top: 0, behavior: 'instant'})")
        data = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True,
                        clip={"x": 0, "y": 0, "width": width, "scale": 1,
                              "height": self.run("document.documentElement.scrollHeight")})["data"]
        path.write_bytes(base64.b64decode(data))
        wide = self.run("document.documentElement.scrollWidth")
        assert wide <= width, f"the page is {wide} pixels wide in a window of {width}"

    def close(self):
        self.session = None
        self.ask("Browser.close")
        self.process.wait(30)


def units(n):
    """A number of bytes as the page writes it."""
    for unit in ("B", "kB", "MB", "GB", "TB", "PB"):
        if n < 999.95 or unit == "PB":
            return f"{n:.0f} {unit}" if unit == "B" or n >= 99.95 else f"{n:.1f} {unit}"
        n /= 1000


def tool(*words):
    return subprocess.run([str(w) for w in words], check=True, capture_output=True, text=True).stdout


def make_family():
    """Make family.fm, its figures and its page in the current folder."""
    tokens = ("--model", MODEL, "--tokens", MODEL / "calib.npy", "--seq-len", "128", "--max-tokens", "6144", "--precision", "f32")
    held = ("--eval-tokens", MODEL / "heldout.npy")
    tool("fm-rank", "-q", *tokens, *held, "-o", "ranked")
    tool("fm-train", "-q", *tokens, *held, "--method", "saliency", "--budget-step", "0.1", "--measure-step", "0.2",
         "-o", "trained", "ranked")
    tool("fm-pack", "-q", "--model", MODEL, "-o", "family.fm", "trained")
    Path("quality.json").write_text(tool("fm-bench", "quality", "-q", *held, "--seq-len", "128", "--json", "family.fm"))
    for weights in "fp8", "w4a16:32":
        tool("fm-pack", "-q", "--export", weights, "--budget", "0.4", "--layout", "uniform", "--weights", weights, "family.fm")
    Path("rounded.json").write_text(
        tool("fm-bench", "quality", "-q", *held, "--seq-len", "128", "--json", "fp8", "w4a16:32"))
    tool("fm-bench", "report", "--figures", "quality.json", "--figures", "rounded.json", "-o", "page.html", "family.fm")
    return json.loads(tool("fm-pack", "--list", "--json", "family.fm"))


def forms_of(row):
    """The layouts of a row, and the formats of uniform exports."""
    return row["layouts"] | {f"uniform {name}": form for name, form in row["formats"].items()}


def change(ratio):
    x = 100 * (ratio - 1)
    return f"{'−' if x < 0 else '+'}{abs(x):.1f} %"


def sees_member(b, row, full, forms, model):
    """Check everything that changes with the chosen member."""
    q = row["quality"]
    said = f"{100 * row['budget']:.1f} % of channels removed, {units(row['bytes'])}, CE "
    said += ("about " if q["interpolated"] else "") + f"{q['ce']:.4f} ({change(q['ce'] / full['quality']['ce'])})"
    said += ", interpolated between measured members" if q["interpolated"] else ""
    assert b.text("#chosen") == said, (b.text("#chosen"), said)
    assert b.run("slider.getAttribute('aria-valuetext')") == f"member {row['index']}, {said}"
    assert f"--budget {row['budget']:.4f} --layout ragged family.fm" in b.text("#line")
    table = b.run("[...document.querySelectorAll('#sizes tbody tr')].map("
                  "(tr) => [...tr.cells].map((c) => c.textContent))")
    assert [t[0] for t in table] == forms
    for cells in table:
        form = forms_of(row)[cells[0]]
        files = units(form["files"]) if "files" in form else "–"
        assert cells[1:3] == [units(form["tensors"]), files], cells
        assert cells[3] == change(form.get("files", form["tensors"]) / SOURCE), cells
    tensors = f"tensors of {units(row['bytes'])} instead of {units(full['bytes'])} ({change(row['bytes'] / full['bytes'])})"
    assert tensors in b.text("#change"), b.text("#change")
    layers = b.run("[...document.querySelectorAll('#layers tbody tr')].map("
                   "(tr) => [...tr.cells].map((c) => Number(c.textContent)))")
    assert (min(n[1] for n in layers), max(n[3] for n in layers)) == (row["widths"]["min"], row["widths"]["max"])
    mean = sum(n[2] for n in layers) / len(layers)
    assert abs(mean - row["widths"]["mean"]) < 0.06, (mean, row["widths"], model)


def works_by_keyboard(b, listed):
    rows = listed["budgets"]
    forms = b.run("data_forms = [...document.querySelectorAll('#sizes tbody th')].map((t) => t.textContent)")
    assert sorted(forms) == sorted(forms_of(rows[0]))
    b.run("document.getElementById('slider').focus()")
    b.key("Home")
    for i, row in enumerate(rows):
        sees_member(b, row, rows[0], forms, listed["model"])
        if i + 1 < len(rows):
            b.key("ArrowRight")
    b.key("ArrowLeft", 3)
    sees_member(b, rows[-4], rows[0], forms, listed["model"])
    b.run("document.querySelector('#widths-map .map canvas').focus()")
    b.key("ArrowDown")
    b.key("ArrowDown", 2)
    b.key("ArrowRight", 3)
    want = b.run("document.querySelector('#widths-map .readout').textContent")
    assert want.startswith("Layer 2, expert 3: "), want
    b.run("document.querySelector('#tokens-map .map canvas').focus()")
    b.key("ArrowDown")
    b.key("End")
    assert b.text("#tokens-map .readout").startswith(f"Layer 0, expert {listed['model']['experts'] - 1}: ")
    b.run("document.getElementById('form').focus()")
    b.key("ArrowDown")
    assert "--layout elastic" in b.text("#line"), b.text("#line")
    b.key("ArrowUp")


def opens_well(b, listed):
    """Check the page as it opens: the chosen member and why it was chosen, the held-out tokens, and an
    explanation of every line."""
    rows = listed["budgets"]
    at = listed["recommended"]
    assert int(b.run("slider.value")) == at > 0, b.text("#opened")
    assert b.text("#opened").startswith(f"The page opens at {100 * rows[at]['budget']:.1f} % removed: it is the smallest member")
    assert "32 sequences of 128 tokens (4064 predictions), from separate data (4096 tokens, format npy)" in b.text("#held")
    lines = b.run("[...document.querySelectorAll('.legend .word')].map((s) => s.textContent)")
    assert len(lines) == 8 and all(": " in line for line in lines), lines
    tables = b.run("[...document.querySelectorAll('#sets details table')].map((t) => t.tBodies[0].textContent)")
    assert all(name in tables[-1] for name in ("family", "uniform fp8", "uniform w4a16:32")), tables[-1]


def is_reached_by_tab(b):
    """Check that pressing Tab repeatedly reaches every control."""
    wanted = b.run("[...document.querySelectorAll('input, select, button, summary, [tabindex=\"0\"]')]"
                   ".filter((e) => e.checkVisibility()).length")
    b.run("document.activeElement.blur(); scrollTo(0, 0)")
    seen = set()
    for _ in range(wanted + 5):
        b.key("Tab")
        seen.add(b.run("(() => { const all = [...document.querySelectorAll('*')]; "
                       "return all.indexOf(document.activeElement); })()"))
    radios = 1  # Tab stops at one button of the group of two
    assert len(seen - {0, 1}) >= wanted - radios - 1, (len(seen), wanted)


def has_names(b):
    """Check that every element at which a screen reader stops, except groups, has a name."""
    stops = {"slider", "checkbox", "radio", "button", "combobox", "spinbutton", "image", "img", "application",
             "group", "textbox", "DisclosureTriangle", "form", "region"}
    nodes = b.ask("Accessibility.getFullAXTree")["nodes"]
    found = {}
    for node in nodes:
        role = node.get("role", {}).get("value")
        if node.get("ignored") or role not in stops:
            continue
        name = node.get("name", {}).get("value", "")
        assert name or role == "group", (role, node)
        found[role] = found.get(role, 0) + 1
    assert found["slider"] == 1 and found["application"] == 2 and found.get("image", found.get("img")) >= 6, found


def figures_are_those(b, listed, quality):
    """Check the table after each set of charts."""
    tables = b.run("[...document.querySelectorAll('#sets details table')].map((t) => "
                   "[...t.tBodies[0].rows].map((tr) => [...tr.cells].map((c) => c.textContent)))")
    half = lambda q, of: f" ± {(q[of][1] - q[of][0]) / 2:.4f}" if of in q else ""
    show = lambda name, budget, q: [name, f"{100 * budget:.1f} %", f"{q['ce']:.4f}" + half(q, "ce_interval"),
                                    f"{q['kl']:.4f}" + half(q, "kl_interval"), f"{100 * q['agree']:.1f} %"]
    without_bytes = [[r[:2] + r[3:6] for r in rows] for rows in tables]
    measured = [r for r in listed["budgets"] if not r["quality"]["interpolated"]]
    own = [show("family", r["budget"], r["quality"]) for r in measured]
    assert without_bytes[0] == own, (without_bytes[0][0], own[0])
    kinds = [k for k in quality["rows"][0] if k != "mask"]
    want = [show(k, r[k]["budget"], r[k]) for k in kinds for r in quality["rows"]]
    assert without_bytes[1] == want
    own_losses = [r[:2] + [r[2], "–", "–"] for r in own]
    assert [r for r in without_bytes[2] if r[0] == "family"] == own_losses, without_bytes[2]
    bytes_of = {r["budget"]: r["bytes"] for r in listed["budgets"]}
    for r, row in zip(tables[0], measured):
        assert r[2] == units(bytes_of[row["budget"]]), r
    polylines = b.run("[...document.querySelectorAll('#sets svg[role=img]')].map("
                      "(s) => s.querySelectorAll('polyline').length)")
    assert polylines == [1, 1, 1, 4, 4, 4, 3], polylines


def resists(b):
    """Open the page of a hostile bundle: none of its scripts may run, and the content security policy must
    refuse injected ones."""
    code = f"b.manifest['history'][0]['options'][{LIAR!r}] = {LIAR!r}"
    subprocess.run([sys.executable, ROOT / "tests/cli/forge.py", "family.fm", "<img src=x onerror=alert(1)>.fm", code],
                   check=True)
    tool("fm-bench", "report", "-q", "-o", "hostile.html", "<img src=x onerror=alert(1)>.fm")
    b.open(Path("hostile.html"))
    assert not b.complaints(), b.complaints()
    assert b.run("document.querySelectorAll('img, script:not(#data)').length") == 1
    assert b.run(f"document.getElementById('history').textContent.split({json.dumps(LIAR)}).length") == 3
    b.run("document.body.insertAdjacentHTML('beforeend', \"<img src=x onerror='window.ran = 1'>\");"
          "const s = document.createElement('script'); s.textContent = 'window.ran = 1'; document.body.append(s)")
    b.run("new Promise((done) => setTimeout(done, 200))")
    assert b.run("window.ran === undefined")
    assert any("Content Security Policy" in json.dumps(c) for c in b.complaints()), b.complaints()


def pictures(b, folder):
    folder.mkdir(parents=True, exist_ok=True)
    for dark in (False, True):
        for width in (1280, 768, 390):
            b.picture(folder / f"page-{'dark' if dark else 'light'}-{width}.png", width, dark)
    b.ask("Emulation.clearDeviceMetricsOverride")
    paper = b.ask("Page.printToPDF", printBackground=False)["data"]
    (folder / "page.pdf").write_bytes(base64.b64decode(paper))


def main():
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if not program:
        sys.exit("pagejudge: no Chromium here; on Debian: apt-get install chromium")
    shots = Path(os.environ.get("FM_JUDGE_SHOTS", ROOT / os.environ.get("BUILD", "build") / "judge-page"))
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        listed = make_family()
        quality = json.load(open("quality.json"))
        b = Browser(program, scratch + "/profile")
        b.open(Path("page.html"))
        assert not b.complaints(), b.complaints()
        opens_well(b, listed)
        works_by_keyboard(b, listed)
        figures_are_those(b, listed, quality)
        has_names(b)
        is_reached_by_tab(b)
        assert not b.complaints(), b.complaints()
        pictures(b, shots)
        resists(b)
        b.close()
    print(f"pagejudge: the page shows what the tools print; screenshots in {shots}")


main()
