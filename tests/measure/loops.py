#!/usr/bin/env python3
"""Measure how often `fm-bench loops` is wrong: false alarms on ordinary text, and loops that it misses.

usage: BUILD=build tests/measure/loops.py [--texts N] [--characters N]

Ordinary texts are pieces of files of this machine, of six kinds, that begin and end anywhere, as generated
texts end that a limit of tokens cut.  For loops, a piece of such a text is repeated until the text is as
long: 1 to 64 words or 1 to 128 characters, from a quarter, a half or three quarters of the text on.
Prints a table in Markdown.
"""

import argparse
import glob
import gzip
import json
import os
import random
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / os.environ.get("BUILD", "build") / "bin" / "fm-bench"
KINDS = {
    "prose": ["/usr/share/doc/**/README*", "/usr/share/doc/**/*.md", "/usr/share/perl/**/*.pod"],
    "code": ["/usr/lib/python3*/**/*.py", "/usr/include/*.h"],
    "logs": ["/var/log/**/*.log", "/usr/share/doc/**/changelog*", "/usr/share/doc/**/NEWS*"],
    "tables": ["/usr/share/**/*.csv", "/usr/share/zoneinfo/*.tab", "/usr/share/misc/*", "/usr/share/unicode/**/*.txt",
               "/etc/services", "/etc/protocols"],
    "licences": ["/usr/share/common-licenses/*", "/usr/share/doc/*/copyright"],
    "lists": ["/var/lib/dpkg/info/*.list", "/var/lib/dpkg/status", "/usr/share/i18n/SUPPORTED", "/etc/mime.types"],
}  # fmt: skip


def read(path):
    data = Path(path).read_bytes()
    if path.endswith(".gz"):
        data = gzip.decompress(data)
    return data.decode(errors="ignore").replace("\0", "")


def ordinary(globs, count, size, rng):
    paths = sorted({p for g in globs for p in glob.glob(g, recursive=True) if os.path.isfile(p)})
    texts, tries = [], 0
    while len(texts) < count and tries < 50 * count:
        tries += 1
        text = read(rng.choice(paths))
        if len(text) >= size:
            at = rng.randrange(len(text) - size + 1)
            texts.append(text[at : at + size])
    return texts


def looping(text, rng):
    head = text[: int(len(text) * rng.choice((0.25, 0.5, 0.75)))]
    words = text.split()
    if rng.random() < 0.5:
        n = rng.randint(1, min(64, len(words)))
        at = rng.randrange(len(words) - n + 1)
        unit = " ".join(words[at : at + n]) + " "
    else:
        n = rng.randint(1, 128)
        at = rng.randrange(len(text) - n)
        unit = text[at : at + n]
    while len(head) + 4 * len(unit) > len(text):  # room for four units
        head = head[: len(head) // 2]
        unit = unit[: max(1, len(unit) * 3 // 4)]
    return (head + unit * (len(text) // len(unit) + 1))[: len(text)]


def rate(texts):
    rows = "".join(json.dumps({"text": t}) + "\n" for t in texts)
    out = subprocess.run([TOOL, "loops", "--json", "-"], input=rows.encode(), check=True, stdout=subprocess.PIPE)
    return json.loads(out.stdout)["files"][0]["looping"] / len(texts)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--texts", type=int, default=2000)
    p.add_argument("--characters", type=int, default=1500)
    a = p.parse_args()
    rng = random.Random(60)
    print("| kind | texts | false alarms | loops found |\n| :-- | --: | --: | --: |")
    for kind, globs in KINDS.items():
        texts = ordinary(globs, a.texts, a.characters, rng)
        loops = [looping(t, rng) for t in texts]
        print(f"| {kind} | {len(texts)} | {100 * rate(texts):.2f} % | {100 * rate(loops):.2f} % |", flush=True)


if __name__ == "__main__":
    main()
