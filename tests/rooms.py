#!/usr/bin/env python3
"""Check which room includes which.  Part of `make lint`.

A room is a folder of sources with one subject; fm-hacking(7) lists them.  Every room has a row below with the
other rooms that its files may include.  A row may list only rooms above it in the table, so no room
includes one of a higher layer.  A room includes another of its own layer only if its row lists it.  A row lists no
room that is not included.

A list that grows (families, layouts) has a folder in the room that uses it.  That folder is a
separate, higher room: its files include the room with the list, and no file includes them.

Messages of lib/base, formats and kernels do not name options of the tools.

Only a family's own file names the family, by its struct or in a string: its model_type, or its class in
transformers.  The list is lib/family/family.h; HOOKS has the exceptions.  Likewise for layouts, with the
list lib/export/layouts.h, and for the names of formats, which only formats/quant has; READERS has the
exceptions.

A header in PRIVATE is included only by its own room and by tests.  Files include each other in a cycle
only if one of MODULES, a module of several files, is part of the cycle.

    tests/rooms.py [ROOT]           check the tree; a line for every fault, status 1
    tests/rooms.py --table [ROOT]   only report the floor, files and lines of each room, the longest
                                    files, and the number of options
"""

import re
import sys
from collections import defaultdict
from pathlib import Path

# From the ground up: a room includes only rooms of rows above its own, and only those in its row.
ROOMS = {
    "lib/base": "",
    "formats/file": "lib/base",
    "formats/json": "lib/base formats/file",
    "formats/quant": "lib/base formats/file formats/json",
    "formats/tensor": "lib/base formats/file formats/json formats/quant",
    "formats/bundle": "lib/base formats/file formats/json",
    "formats/text": "lib/base formats/file formats/json",
    "formats/sign": "lib/base formats/file formats/json",
    "formats/runtime": "",
    "kernels/ops": "lib/base",
    "kernels/cpu": "lib/base kernels/ops",
    "kernels/clip": "lib/base",
    "kernels/clip/cuda": "kernels/clip",
    "lib/masks": "lib/base",
    "lib/comm": "lib/base",
    "lib/state": "lib/base formats/file formats/tensor kernels/ops lib/comm",
    "lib/run": "lib/base formats/file formats/json formats/tensor formats/bundle kernels/ops lib/comm",
    "lib/move": "lib/base",
    "lib/block": "lib/base formats/json formats/quant kernels/ops",
    "lib/family": "lib/base formats/json formats/quant formats/tensor lib/block",
    "lib/family/models": "lib/block lib/family",
    "lib/model": "lib/base formats/file formats/json formats/quant formats/tensor formats/bundle"
            " kernels/ops lib/block lib/family lib/move",
    "lib/engine": "lib/base kernels/ops lib/comm lib/state lib/block lib/model",
    "lib/data": "lib/base formats/file formats/json formats/bundle formats/text lib/run lib/model",
    "lib/stage": "lib/base formats/file formats/json formats/quant formats/tensor formats/bundle"
            " kernels/ops lib/masks lib/run lib/block lib/family lib/model lib/engine",
    "lib/learn": "lib/base formats/file formats/json formats/quant formats/tensor formats/bundle"
            " lib/comm lib/state lib/masks lib/run lib/block lib/model lib/engine lib/data lib/stage",
    "lib/methods": "lib/base formats/json lib/state lib/masks lib/learn",
    "lib/export": "lib/base formats/file formats/json formats/quant formats/tensor formats/bundle"
            " formats/sign formats/runtime lib/masks lib/run lib/block lib/move lib/family lib/model"
            " lib/stage",
    "lib/export/layouts": "lib/base lib/export",
    "lib/page": "lib/base formats/file formats/json formats/quant lib/stage lib/export",
    "lib/publish": "lib/base formats/file formats/tensor formats/bundle formats/sign lib/run",
    "lib/verify": "lib/base formats/file formats/json formats/tensor lib/masks lib/run"
            " lib/move lib/model lib/engine lib/data lib/stage lib/export formats/sign",
    "lib/bench": "lib/base formats/file formats/json formats/tensor formats/bundle formats/text"
            " kernels/ops kernels/clip lib/masks lib/run lib/engine lib/data lib/stage lib/learn"
            " lib/export",
    "lib/baseline": "lib/base lib/masks lib/run lib/block lib/stage lib/learn",
    "cmd": "lib/base formats/json lib/masks lib/run lib/family lib/stage lib/learn lib/export lib/publish"
            " lib/verify lib/bench lib/baseline lib/page",
    "tests/unit": "*",
    "tests/fuzz": "*",
    "tests/judge": "*",
    "tests/measure": "*",
    "tests/gpu": "*",
}

# Headers that only their own room includes, and those that one more room may include.
PRIVATE = dict.fromkeys("""
formats/file/temporary.h formats/bundle/place.h formats/tensor/hfindex.h
formats/text/tokenizerparts.h formats/quant/formats.h
kernels/cpu/cpu.h kernels/cpu/cpu_tile.h kernels/cpu/dnnl.h
kernels/clip/clip_avx512.h kernels/clip/clip_plan.h kernels/clip/clip_pool.h kernels/clip/clip_tile.h
lib/engine/sweeping.h
lib/model/loading.h
lib/verify/verifier.h lib/verify/verify_weights.h lib/verify/verify_contents.h
lib/bench/kernelcase.h
""".split(), "")
PRIVATE |= {"kernels/ops/ops.h": "kernels/cpu", "kernels/clip/clip_device.h": "kernels/clip/cuda",
            "lib/export/texts.h": "lib/export/layouts"}
PRIVATE |= dict.fromkeys(("lib/learn/trainer.h lib/learn/recoverer.h lib/learn/tune.h lib/learn/runner.h "
                          "lib/learn/maskgrad.h").split(), "lib/methods")

# Headers of modules of several files, which may include each other in a cycle.
MODULES = set("""
formats/tensor/hfindex.h formats/quant/formats.h
kernels/clip/clip_device.h
lib/engine/sweeping.h lib/model/loading.h lib/learn/trainer.h lib/learn/recoverer.h
lib/verify/verifier.h lib/bench/kernelcase.h
""".split())

INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"')
# Only formats/file opens files by name; other rooms open only files in /proc, by literal names.
OPENS = re.compile(r'\b(open|openat|creat|fopen|freopen|opendir|scandir)\((?!"/proc/)')
SUFFIXES = {".c", ".h", ".def", ".cu", ".cuh", ".cc"}
STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
OPTION = re.compile(r"--[a-z][a-z-]*")
# A row of a table of options (cmd/cli.h): {"max-tokens", 0, FM_CLI_COUNT64, ...
DECLARED = re.compile(r'\{"([a-z][a-z0-9-]*)",\s*(?:0|\'.\'),\s*FM_CLI_')
# The names of a family in its file: of its struct, model_types and class.
FAMILY = re.compile(r"^const struct fm_model_family fm_(\w+) = \{(.*?)^\};", re.M | re.S)
NAMED = re.compile(r'\.(?:name|alias|class_name) = "(\w+)"')
FAMILIES = "lib/family/models/"
# The names of a layout and of a format: of a storage, a method or a quantiser.
LAYOUTS = "lib/export/layouts/"
LAYOUT_LIST = "lib/export/layouts.h"
LAYOUT = re.compile(r'\.(?:name|listed) = "([\w-]+)"')
QUANT = "formats/quant/"
FORMAT = re.compile(r'\.name = "([\w:-]+)"')
# Names of layouts that are also names of granularities and methods.
OTHERS = {"layer", "uniform"}
# What a file that reads checkpoints or exports has to name.
READERS = {
    "formats/tensor/hfdir.c": {"modelopt"},  # it finds this method's second file
    "lib/export/card.c": {"compressed-tensors"},  # also the name of a package for Python
}
REMARK = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
# Python files that other programs run, with the families that they may name.  SGLang requires a list of
# classes, formats/runtime/fm_sglang/models.py.
HOOKS = {
    "formats/runtime/modeling_fm.py": {
        "phimoe",  # its router and rotation are not usable as they are
        "mimo_v2", "MiMoV2", "MiMoV2Flash",  # the first has no class, and the other's has other keys
    },  # fmt: skip
}
NEWLINE = "\n"
COMMENT = re.compile(r"\s*(/\*|\*|//)")


def room_of(path):
    folder = path.rsplit("/", 1)[0] if "/" in path else ""
    return folder if folder in ROOMS else None


def read(root):
    """{file: [(line number, included file)]} of all sources under root."""
    sources = {}
    for top in ("lib", "formats", "kernels", "cmd", "tests"):
        for path in sorted((root / top).rglob("*")):
            if path.suffix in SUFFIXES and path.is_file():
                lines = path.read_text(encoding="utf-8").splitlines()
                found = ((n, INCLUDE.match(line)) for n, line in enumerate(lines, 1))
                sources[str(path.relative_to(root))] = [(n, m[1]) for n, m in found if m]
    return sources


def rows_go_down():
    above = set()
    for room, may in ROOMS.items():
        for other in may.split():
            if other != "*" and other not in above:
                yield f"tests/rooms.py: the row of {room} names {other}, which is not a row above it"
        above.add(room)


def unused_lines(sources):
    used = {(room_of(path), room_of(target)) for path, includes in sources.items() for _, target in includes}
    for room, may in ROOMS.items():
        for other in may.split():
            if other != "*" and (room, other) not in used:
                yield f"tests/rooms.py: the row of {room} lists {other}, which it does not include; remove it"


def faulty_lines(sources):
    for path, includes in sources.items():
        room = room_of(path)
        if not room:
            yield f"{path}: '{path.rsplit('/', 1)[0]}' is not a room; give it a row in tests/rooms.py"
            continue
        may = ROOMS[room].split()
        for line, target in includes:
            to = room_of(target)
            if target not in sources:
                yield f'{path}:{line}: "{target}" is not a file of ours; include from the root'
            elif to != room and to not in may and may != ["*"]:
                yield f'{path}:{line}: {room} includes {to} ("{target}"); it may include {" ".join(may)}'
            elif target in PRIVATE and room not in (to, *PRIVATE[target].split()) and may != ["*"]:
                yield f'{path}:{line}: "{target}" is private to {to}'


def opening_lines(root, sources):
    """Calls that may block on a FIFO or a device; formats/file/file.h has replacements."""
    for path in sources:
        if path.startswith(("formats/file/", "tests/")) or not path.endswith(".c"):
            continue
        for n, line in enumerate((root / path).read_text(encoding="utf-8").splitlines(), 1):
            call = OPENS.search(line.split("/* ")[0])
            if call and not re.search(r"(\.|->)" + call[1], line):
                yield f"{path}:{n}: {call[1]}() outside formats/file; use a function of formats/file/file.h"


def naming_lines(root, sources):
    """Options in strings of rooms that must not name any; they call fm_advise instead."""
    for path in sources:
        if not path.startswith(("lib/base/", "formats/", "kernels/")):
            continue
        for n, line in enumerate((root / path).read_text(encoding="utf-8").splitlines(), 1):
            option = next(filter(None, map(OPTION.search, STRING.findall(line))), None)
            if option and not COMMENT.match(line):
                yield (f"{path}:{n}: {room_of(path)} names the option {option[0]}; "
                       "cmd does that for fm_advise (lib/base/err.h)")


def families(root, sources):
    """{word by which code names a family: files that may do so}."""
    owners = defaultdict(set)
    for path in (p for p in sources if p.startswith(FAMILIES)):
        for name, body in FAMILY.findall((root / path).read_text(encoding="utf-8")):
            for word in NAMED.findall(body):
                owners[word].add(path)
                owners[f"{word}ForCausalLM"].add(path)
                owners[f"fm_{word}"].add(path)
            owners[f"fm_{name}"].add(path)
    return owners


def words_of(path, root):
    """Lines of a source without remarks: (number, its whole strings, its names that begin with fm_)."""
    blank = lambda remark: NEWLINE * remark[0].count(NEWLINE)
    text = REMARK.sub(blank, (root / path).read_text(encoding="utf-8"))
    for n, line in enumerate(text.split(NEWLINE), 1):
        strings = {text[1:-1] for text in STRING.findall(line)}
        yield n, strings, set(re.findall(r"\bfm_\w+", STRING.sub("", line)))


def member_lines(root, sources):
    """Layouts and formats that are named outside their own files."""
    layouts, formats = set(), set()
    for path in sources:
        text = (root / path).read_text(encoding="utf-8")
        if path.startswith(LAYOUTS):
            layouts |= set(LAYOUT.findall(text))
        elif path.startswith(QUANT):
            formats |= set(FORMAT.findall(text))
    for path in (p for p in sources if not p.startswith(("tests/", LAYOUTS, LAYOUT_LIST))):
        for n, strings, names in words_of(path, root):
            for word in sorted(strings & (layouts - OTHERS) - READERS.get(path, set())):
                yield f"{path}:{n}: names the layout {word}; what differs in a layout is a field of its file"
            for word in sorted(names & {f"fm_layout_{word}" for word in layouts}):
                yield f"{path}:{n}: names {word}; only the list does so, {LAYOUT_LIST}"
            if not path.startswith((QUANT, FAMILIES)):
                for word in sorted(strings & formats - READERS.get(path, set())):
                    yield f"{path}:{n}: names the format {word}; only formats/quant does so"


def family_lines(root, sources):
    """Families that are named outside their own files."""
    owners = families(root, sources)
    for path in (p for p in sources if not p.startswith("tests/")):
        for n, strings, names in words_of(path, root):
            for word in sorted(strings | names):
                if word in owners and path not in owners[word]:
                    yield (f"{path}:{n}: names the family {word}; what differs in a family is a field of"
                           f" its file, {min(owners[word])}")
    for path, may in HOOKS.items():
        text = (root / path).read_text(encoding="utf-8")
        text = re.sub(r'""".*?"""|#[^\n]*', lambda remark: NEWLINE * remark[0].count(NEWLINE), text, flags=re.S)
        for n, line in enumerate(text.split(NEWLINE), 1):
            for word in sorted(set(re.findall(r"\w+", line)) & set(owners) - may):
                yield f"{path}:{n}: names the family {word}; its class in transformers should suffice"


def circles(sources):
    """Strongly connected components of several units (a unit is x.c with x.h), by Tarjan's algorithm."""
    unit = lambda path: path.rsplit(".", 1)[0]
    edges = defaultdict(set)
    for path, includes in sources.items():
        edges[unit(path)] |= {unit(t) for _, t in includes if unit(t) != unit(path)}
    order, low, stack, found = {}, {}, [], []

    def visit(u):
        order[u] = low[u] = len(order)
        stack.append(u)
        for v in edges.get(u, ()):
            if v not in order:
                visit(v)
                low[u] = min(low[u], low[v])
            elif v in stack:
                low[u] = min(low[u], order[v])
        if low[u] == order[u]:
            at = stack.index(u)
            found.append(stack[at:])
            del stack[at:]

    sys.setrecursionlimit(10000)
    for u in list(edges):
        if u not in order:
            visit(u)
    modules = {unit(p) for p in MODULES}
    for ring in found:
        if len(ring) > 1 and not modules & set(ring):
            yield f"an include cycle of files that are not one module: {' '.join(sorted(ring))}"


def table(root, sources):
    files = defaultdict(list)
    text = {p: (root / p).read_text(encoding="utf-8") for p in sources}
    for path in sources:
        files[path.rsplit("/", 1)[0]].append(path)
    floor = {}
    for room, may in ROOMS.items():
        floor[room] = 1 + max((floor[r] for r in may.split() if r in floor), default=0)
    for room in ROOMS:
        c = sum(p.endswith((".c", ".cu", ".cc")) for p in files[room])
        print(f"{floor[room]:3}  {room:18} {c:3} sources, {len(files[room]) - c:3} headers,"
              f" {sum(text[p].count(NEWLINE) for p in files[room]):6} lines")
    lines = {p: text[p].count(NEWLINE) for p in sources if not p.startswith("tests/")}
    print("\nThe longest files:")
    for path in sorted(lines, key=lines.get, reverse=True)[:10]:
        print(f"{lines[path]:5}  {path}")
    options = {name for p in sources if p.startswith("cmd/") for name in DECLARED.findall(text[p])}
    print(f"\n{sum(lines.values())} lines of C in cmd, lib, formats and kernels;"
          f" {len(options)} different options")


def main(arguments):
    root = Path(next((a for a in arguments if not a.startswith("--")), "."))
    sources = read(root)
    if "--table" in arguments:
        return table(root, sources)
    faults = [*rows_go_down(), *unused_lines(sources), *faulty_lines(sources), *opening_lines(root, sources),
              *naming_lines(root, sources), *family_lines(root, sources),
              *member_lines(root, sources), *circles(sources)]
    if not sources:
        faults.append("tests/rooms.py: no source files here; run it from the root")
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
