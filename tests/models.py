#!/usr/bin/env python3
"""The list of models in fm(7), from the opening comments of lib/family/models/*.c.

    models.py           exit 1 if the page's list is not current (part of `make lint`)
    models.py --write   write it into the page (`make models`)

A family's file opens with "MODELS: what differs from other families.", of which the page has the models.  The order
is that of FM_FAMILY_ROWS.
"""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "man/fm.7"
BEGIN, END = '.\\" models\n', '.\\" end of models\n'


def opening(text):
    """The models that a file's opening comment names, before its first colon; None without one."""
    comment = re.match(r"/\*(.*?)\*/", text, re.S)[1]
    plain = " ".join(re.sub(r"^ \* ?", "", line).strip() for line in comment.strip("\n *").split("\n"))
    models, colon, _ = re.sub(r" \([\w/.]+\.[ch]\)", "", plain).partition(": ")
    return models if colon else None


def rows():
    files = {path: path.read_text() for path in sorted((ROOT / "lib/family/models").glob("*.c"))}
    header = (ROOT / "lib/family/family.h").read_text()
    listed = re.findall(r"ROW\((\w+)\)", header[header.index("#define FM_FAMILY_ROWS(ROW)"):])
    found = {}
    for name in listed:
        path, text = next((p, t) for p, t in files.items() if f"fm_model_family fm_{name} =" in t)
        struct = text[text.index(f"fm_model_family fm_{name} ="):].split("\n};")[0]
        found.setdefault(path, []).extend(re.findall(r'\n    \.(?:name|alias) = "(\w+)"', struct))
    for path, names in found.items():
        if not (said := opening(files[path])):
            sys.exit(f"models.py: {path.relative_to(ROOT)} must open with 'MODELS: what differs'")
        yield said, names


def main():
    made = ""
    for models, names in rows():
        made += f".It Cm {' , '.join(names)}\n{models}\n"
    text = PAGE.read_text()
    before, rest = text.split(BEGIN)
    held, after = rest.split(END)
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(before + BEGIN + made + END + after)
    elif held != made:
        sys.exit("models.py: the list of models in fm(7) is not current; run make models")


main()
