#!/usr/bin/env python3
"""The list of models in fm(7), from the opening comments of lib/family/models/*.c.

    models.py           exit 1 if the page's list is not current (part of `make lint`)
    models.py --write   write it into the page (`make models`)

A family's file opens with "MODELS: what differs from other families."  A sentence "Source: ..." and paths in
parentheses are not printed, and neither are further paragraphs.  The order is that of FM_FAMILY_ROWS.
"""
import re
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "man/fm.7"
BEGIN, END = '.\\" models\n', '.\\" end of models\n'


def opening(text):
    """(models, description) of the first paragraph of a file's opening comment."""
    comment = re.match(r"/\*(.*?)\*/", text, re.S)[1]
    paragraph = re.split(r"\n \*\s*\n", comment.strip("\n *"))[0]
    plain = " ".join(re.sub(r"^ \* ?", "", line).strip() for line in paragraph.split("\n"))
    plain = re.sub(r" \([\w/.]+\.[ch]\)", "", re.split(r"\s+Source:", plain)[0].strip())
    models, colon, what = plain.partition(": ")
    return (models, what[0].upper() + what[1:]) if colon else None


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
        yield said[0], names, said[1]


def main():
    made = ""
    for models, names, what in rows():
        made += f".It {models} ( Cm {' , '.join(names)} )\n"
        for sentence in re.split(r"(?<=\.)\s+(?=[A-Za-z])", what):
            made += textwrap.fill(sentence, 110) + "\n"
    text = PAGE.read_text()
    before, rest = text.split(BEGIN)
    held, after = rest.split(END)
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(before + BEGIN + made + END + after)
    elif held != made:
        sys.exit("models.py: the list of models in fm(7) is not current; run make models")


main()
