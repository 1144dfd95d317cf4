#!/usr/bin/env python3
"""Check references in comments and pages.  Part of `make lint`.

A path of this repository (lib/engine/sweep.c) in a source, a script, a page or README must exist, and so
must a bare file name (sweep.c) in a comment of C or CUDA.  The header that opens a room, with the words
"This room, <folder>:", must name every unit of the room (x of x.c and x.h) in its opening comment;
"unicode_*" names all units that begin with that.

Comments and pages must not contain any of PHRASES (fm-hacking(7), Words).

    tests/signposts.py [ROOT]   a line for every fault, status 1
"""

import re
import sys
from pathlib import Path

TOPS = ("cmd", "lib", "kernels", "formats", "tests", "golden", "man")
SUFFIXES = "cuh cu cc c h def py sh bash js css html map mk"
PATH = re.compile(rf"(?<![\w./-])((?:{'|'.join(TOPS)})/[\w./-]*\.(?:{SUFFIXES.replace(' ', '|')}))(?![\w])")
NAME = re.compile(r"(?<![\w./<\"-])(\w+\.(?:cuh|cu|cc|c|h|def))(?![\w.])")
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
ROOM = re.compile(r"This room, ([\w/]+):")
SOURCES = {".c", ".h", ".def", ".cu", ".cuh", ".cc"}
READ = SOURCES | {".py", ".sh", ".bash", ".1", ".3", ".5", ".7", ".md", ".mk"}

# Names of other projects, and names of examples.
ELSEWHERE = {"llm.c", "omp.h", "cuda.h", "fm_clip.h", "x.c", "x.h"}
EXAMPLES = {"tests/unit/test_rooms.sh", "tests/unit/test_signposts.sh", "tests/signposts.py", "tests/rooms.py"}

# Phrases that reviewers marked most often, and what to write instead.
PHRASES = [(re.compile(phrase), better) for phrase, better in (
    (r"(?i:\b(?:nobody|somebody|whoever|everybody)\b)", "name the caller, the user, the thread or the process"),
    (r"(?<!there )\b(?:is|are) none\b", "say 'is not a ...', 'there is no ...' or 'has no ...'"),
    (r"\b(?:is|are) told\b", "say what the code reads, requires or receives"),
    (r"\balone (?:is|are|has|have|can|says|knows|reads|takes)\b", "say 'only'"),
    (r"\b(?:lies|lie) (?:in|on|beside|behind|one|there|here)\b", "say 'is in', 'is at', 'follows'"),
    (r"\bone behind (?:another|the other)\b", "say 'one after the other'"),
)]
SCRIPTED = re.compile(r"^\s*#[^\n]*|\"\"\".*?\"\"\"", re.M | re.S)
PROSE = {".1", ".3", ".5", ".7", ".md"}


def texts(root):
    """{path: text} of all files with references."""
    found = {}
    for top in (*TOPS, "README.md", "Makefile", ".ci"):
        here = root / top
        for path in sorted(here.rglob("*")) if here.is_dir() else [here]:
            name = str(path.relative_to(root))
            if path.is_file() and (path.suffix in READ or top == "Makefile" or path.name == "README"):
                found[name] = path.read_text(encoding="utf-8", errors="replace")
    return found


def line_of(text, at):
    return text.count("\n", 0, at) + 1


def stale(found, root):
    names = {path.name for top in TOPS for path in (root / top).rglob("*")}
    for path, text in found.items():
        if path in EXAMPLES:
            continue
        for m in PATH.finditer(text):
            if not (root / m[1]).exists() and not re.search("[A-Z]{3}", m[1]):
                yield f"{path}:{line_of(text, m.start())}: there is no {m[1]}"
        if Path(path).suffix not in SOURCES:
            continue
        for comment in COMMENT.finditer(text):
            for m in NAME.finditer(comment[0]):
                if m[1] not in names | ELSEWHERE:
                    yield f"{path}:{line_of(text, comment.start() + m.start())}: there is no {m[1]}"


def left_out(found):
    for path, text in found.items():
        m = ROOM.search(text)
        if not m or Path(path).suffix != ".h":
            continue
        opening = next(c[0] for c in COMMENT.finditer(text) if m[0] in c[0])
        units = {Path(p).stem for p in found if str(Path(p).parent) == m[1] and Path(p).suffix in SOURCES}
        named = re.findall(r"[\w-]+\*?", opening)
        for unit in sorted(units - {Path(path).stem} - set(named)):
            if any(n.endswith("*") and unit.startswith(n[:-1]) for n in named):
                continue
            yield f"{path}: the opening of {m[1]} does not name {unit}"


def marked(found):
    for path, text in found.items():
        if path in EXAMPLES or path == "man/fm-hacking.7":
            continue
        suffix = Path(path).suffix
        form = COMMENT if suffix in SOURCES else re.compile(r"[^\n]+") if suffix in PROSE else SCRIPTED
        for part in form.finditer(text):
            for phrase, better in PHRASES:
                for m in phrase.finditer(re.sub(r"\n[ \t]*[*#]?", lambda n: " ".ljust(len(n[0])), part[0])):
                    yield f"{path}:{line_of(text, part.start() + m.start())}: '{m[0]}': {better}"


def main(arguments):
    root = Path(arguments[0] if arguments else ".")
    found = texts(root)
    faults = [*stale(found, root), *left_out(found), *marked(found)]
    if not found:
        faults.append("tests/signposts.py: nothing to read here; run it from the root")
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
