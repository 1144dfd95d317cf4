#!/usr/bin/env python3
"""Measure latency and tokens per second of an elastic export with and without libfm_clip, in transformers
and in vLLM's CPU build, eager and compiled, at several budgets.  Run by `make judge-clip`.

    clipspeed.py PYTHON_OF_VLLM [RUNTIME...]    (tests/judge/clients.sh --clip gives the first)

A request has SEQUENCES prompts of LENGTH tokens, and TOKENS are generated after each prompt.  `first` is the
time until every prompt has its first token, `next` the mean time between later tokens (each step makes one
for every prompt), and `tok/s` the number of generated tokens divided by the time of the whole request.
The columns `own` have the same figures without the library.

A random model is made (FM_CLIP_SHAPE; default: H 1024, I 3584, 8 experts of which 2 are chosen, 4 layers;
1.4 GB in float32, and three times that on disk while it is made).  For each runtime and mode two processes
(tests/measure/clipworker.py) load its elastic export: one finds the library, the other does not.  In each
round both measure every budget, one right after the other.  Times are medians over the rounds; a ratio is
the median of the rounds' ratios, and above 1 if the library is faster.  Before the first round every budget
runs once, and the losses of both processes are compared.  The exit status is 1 if they differ by more than
TOLERANCE, if a process failed, or if one did not compute the experts as intended.

FM_CLIP_ROUNDS (default 5), FM_CLIP_BUDGETS (0,0.2,0.4,0.6) and FM_CLIP_MODES (eager,compiled) select what is
measured; FM_JUDGE_COMPILE (inductor) is the backend of torch.compile in transformers.  FM_CLIP_EXPORT is an
existing export to load instead; a ragged one has one budget.  FM_CLIP_WHEEL is a wheel of fm-runtime: pip
installs it, and the modelling file uses its library.
"""

import contextlib
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from client import MARK

ROOT = Path(__file__).resolve().parents[2]
SHAPE = os.environ.get("FM_CLIP_SHAPE", "1024,3584,8,2,4,4096,512")
BUDGETS = [float(x) for x in os.environ.get("FM_CLIP_BUDGETS", "0,0.2,0.4,0.6").split(",")]
MODES = os.environ.get("FM_CLIP_MODES", "eager,compiled").split(",")
EXPORT, WHEEL = os.environ.get("FM_CLIP_EXPORT"), os.environ.get("FM_CLIP_WHEEL")
ROUNDS = int(os.environ.get("FM_CLIP_ROUNDS", "5"))
TOLERANCE = 1e-4  # for losses; those of neighbouring budgets differ by more
SEQUENCES, LENGTH, TOKENS = 4, 128, 16
COLUMNS = ("runtime", "mode", "budget", "loss", "loss off", "first ms", "own", "ratio",
           "next ms", "own", "ratio", "tok/s", "own", "ratio")


def run(*command):
    """Run a tool; its messages are shown only if it fails."""
    done = subprocess.run([str(x) for x in command], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"clipspeed.py: {command[0]} failed: {done.stderr.strip()}")


def export(folder):
    """Make an elastic export of a model and masks that measure-engine generates."""
    shape = ("--shape", SHAPE, "--dtype", "f32", "--sequences", 1, "--steps", 0)
    run("measure-engine", *shape, "--keep", "--dir", folder)
    made = next(folder.rglob("config.json")).parent
    family, out = folder / "family.fm", folder / "elastic"
    run("fm-pack", "--quiet", "--model", made, "-o", family, made.parent / "stage")
    run("fm-pack", "--quiet", "--export", out, "--layout", "elastic", family)
    shutil.rmtree(made.parent)
    family.unlink()
    return out


class Worker:
    def __init__(self, python, runtime, mode, folder, library, log):
        environment = os.environ | {"FM_CLIP_LIBRARY": library}
        if WHEEL and library != "none":
            environment = os.environ | {"PYTHONPATH": f"{library}:{os.environ['PYTHONPATH']}"}
            environment.pop("FM_CLIP_LIBRARY", None)
        environment.setdefault("OMP_NUM_THREADS", str(len(os.sched_getaffinity(0))))
        command = [python, ROOT / "tests/measure/clipworker.py", runtime, mode, folder]
        self.name, self.log = f"{runtime}, {mode}, FM_CLIP_LIBRARY={library}", log
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, env=environment, stderr=log.open("w"), **pipes)
        self.read()

    def read(self):
        for line in self.process.stdout:
            if line.startswith(MARK):
                said = json.loads(line.removeprefix(MARK))
                if "error" in said:
                    break
                return said.get("value")
        sys.stderr.write(self.log.read_text()[-4000:])
        raise SystemExit(f"clipspeed.py: {self.name}: {said.get('error', 'ended')}")

    def ask(self, **job):
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        return self.read()

    def close(self):
        self.process.stdin.close()
        self.process.wait()

    def path(self):
        """The messages of the modelling file that say how it computes the experts."""
        said = {line for line in self.log.read_text().splitlines() if line.startswith("modeling_fm: experts by ")}
        return " and ".join(sorted(said))


def installed(python, scratch):
    """The path of the library that was built, or of the folder into which pip installs the wheel."""
    if not WHEEL:
        return str((ROOT / os.environ.get("BUILD", "build") / "libfm_clip.so.1").resolve())
    target = scratch / "wheel"
    if not target.exists():
        run(python, "-m", "pip", "install", "--quiet", "--no-index", "--target", target, WHEEL)
    return str(target)


def measure(pair, ids, budgets):
    """Return, for each budget, the losses of both processes, and the seconds (first, next, whole) of each
    round and process."""
    losses = {budget: [w.ask(budget=budget, ids=ids, tokens=0) for w in pair] for budget in budgets}
    cases = {budget: [] for budget in budgets}
    for turn in range(-1, ROUNDS):
        for budget, rounds in cases.items():
            took = {}
            for w in pair if turn % 2 == 0 else pair[::-1]:
                first, whole = w.ask(budget=budget, ids=ids, tokens=TOKENS)
                took[w] = first, (whole - first) / (TOKENS - 1), whole
            if turn >= 0:
                rounds.append([took[w] for w in pair])
    return losses, cases


def table(runtime, mode, losses, cases):
    for budget, rounds in cases.items():
        loss = losses[budget]
        row = [runtime, mode, "-" if budget is None else f"{budget:.2f}", f"{loss[0]:.6f}",
               f"{abs(loss[0] - loss[1]):.1e}"]
        shown = (lambda s: 1e3 * s, lambda s: 1e3 * s, lambda s: SEQUENCES * TOKENS / s)
        for i, show in enumerate(shown):
            row += [f"{show(statistics.median(x[who][i] for x in rounds)):.1f}" for who in (0, 1)]
            row.append(f"{statistics.median(x[1][i] / x[0][i] for x in rounds):.2f}")
        yield row


def show(rows):
    wide = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    for row in rows:
        print("  ".join(x.rjust(w) for x, w in zip(row, wide, strict=True)), flush=True)


def compare(python, runtime, mode, folder, scratch, ids, budgets):
    """Return the rows of one runtime and mode, and whether all results are right."""
    library = installed(python, scratch)
    with contextlib.ExitStack() as stack:
        pair = []
        for name, lib in (("clip", library), ("own", "none")):
            pair.append(Worker(python, runtime, mode, folder, lib, scratch / f"{name}.log"))
            stack.callback(pair[-1].close)
        losses, cases = measure(pair, ids, budgets)
    said = [w.path() for w in pair]
    print(f"{runtime}, {mode}: {said[0]} | {said[1]}", flush=True)
    paths = "libfm_clip 0" in said[0] and "without libfm_clip" in said[1]
    return list(table(runtime, mode, losses, cases)), paths and all(
        abs(a - b) <= TOLERANCE for a, b in losses.values()
    )


def main():
    vllm, *runtimes = sys.argv[1:]
    pythons = {"transformers": sys.executable, "vllm": vllm}
    rows, ok = [COLUMNS], True
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", "/var/tmp")) as scratch:
        folder = Path(EXPORT) if EXPORT else export(Path(scratch))
        config = json.loads((folder / "config.json").read_text())
        vocabulary, budgets = config["vocab_size"], BUDGETS if config.get("fm_family") else [None]
        draw = random.Random(1)
        ids = [[draw.randrange(3, vocabulary) for _ in range(LENGTH)] for _ in range(SEQUENCES)]
        for runtime in runtimes or pythons:
            for mode in MODES:
                more, right = compare(pythons[runtime], runtime, mode, folder, Path(scratch), ids, budgets)
                rows, ok = rows + more, ok and right
        what = folder if EXPORT else f"H,I,E,k,layers,vocabulary: {SHAPE.rsplit(',', 1)[0]}"
        request = f"{SEQUENCES} prompts of {LENGTH} tokens, {TOKENS} generated after each"
        print(f"{what}; float32; {request}; medians of {ROUNDS} rounds")
        show(rows)
    print("libfm_clip in the runtimes: " + ("ok" if ok else "WRONG"))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
