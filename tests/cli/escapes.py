#!/usr/bin/env python3
"""Put a terminal control sequence into each kind of string in the files that the tools read, and a long
word into each of a manifest.

    escapes.py GOLDEN

Run in a folder with a bundle, family.fm.  One string at a time is changed: in the manifest, the carried
config.json, the headers of the safetensors members and the names of members; and in a checkpoint's
config, index, tensor names, tokenizer, token file and texts.  The tools must then print only text, on
standard output and standard error, and must not end by a signal.  Every violation is printed.
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

sys.dont_write_bytecode = True
import forge  # noqa: E402

WORD = "\x1b]0;owned\x07\r\nPWNED\x7f\u009b31m\u202eabc\u2066"
# Not UTF-8.  Each format has one reader that refuses it, so it is tested once per format.
BYTES = "PWNED\udc9b\udcff\udcc3"
LONG = "a" * 700  # longer than any buffer for a line
OBEYED = re.compile("[\0-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
runs = lies = 0
seen = set()


def obey(output):
    """The first part of a tool's output that a terminal could interpret, or None."""
    try:
        text = output.decode()
    except UnicodeDecodeError:
        return "bytes that are not UTF-8"
    found = OBEYED.search(text)
    if found:
        return f"U+{ord(found[0]):04X}"
    return "a line of its own" if re.search("^PWNED", text, re.M) else None


def check(title, command):
    global runs
    runs += 1
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
    if done.returncode < 0:
        print(f"{title}: {command[0]} {command[1]}: ended by signal {-done.returncode}")
    for name, output in (("standard output", done.stdout), ("standard error", done.stderr)):
        if obey(output):
            print(ascii(f"{title}: {command[0]} {command[1]}: {obey(output)} on {name}"))


def strings(tree, path=()):
    """Paths to one string of each kind; of an array, only the first element is used."""
    if isinstance(tree, str):
        yield path
    for key in tree if isinstance(tree, dict) else range(min(1, len(tree))) if isinstance(tree, list) else ():
        yield from strings(tree[key], path + (key,))


def put(tree, path, word):
    """Append the payload to a string, because readers may check how it begins."""
    for key in path[:-1]:
        tree = tree[key]
    tree[path[-1]] += word


def read_bundle(title):
    for command in (["fm-pack", "--list", "lie.fm"], ["fm-pack", "--list", "--json", "lie.fm"],
                    ["fm-verify", "lie.fm"], ["fm-verify", "--json", "lie.fm"],
                    ["fm-pack", "--export", "out", "--dry-run", "--budget", "0.2", "lie.fm"]):
        check(title, command)
    if title.startswith("manifest"):
        check(title, ["fm-train", "--model", "model", "--tokens", "model/tokens.npy", "--method", "learned",
                      "--steps", "1", "--dry-run", "lie.fm"])


def lie(title, change):
    """Test the bundle with the payload in one place; for the first place of each format, also with BYTES."""
    global lies
    kind = title.split()[0]
    for word in (WORD,) if kind in seen else (WORD, BYTES):
        b = forge.Bundle("family.fm")
        change(b, word)
        b.write("lie.fm")
        lies += 1
        read_bundle(title)
    seen.add(kind)


def lie_in_header(b, member, change):
    tree, data = forge.unpack_safetensors(b.member[member])
    change(tree)
    text = json.dumps(tree, ensure_ascii=False).encode("utf-8", "surrogateescape")
    b.member[member] = forge.struct.pack("<Q", len(text)) + text + data


def rename(tree, old, new):
    kept = list(tree.items())
    tree.clear()
    tree.update((new if key == old else key, value) for key, value in kept)


def bundles():
    whole = forge.Bundle("family.fm")
    manifest = {k: v for k, v in whole.manifest.items() if k != "members"}
    for path in strings(manifest):
        lie(f"manifest {path}", lambda b, word: put(b.manifest, path, word))
        b = forge.Bundle("family.fm")
        put(b.manifest, path, LONG)
        b.write("lie.fm")
        check(f"long manifest {path}", ["fm-pack", "-q", "--export", "out", "-f", "--budget", "0.2", "lie.fm"])
    lie("manifest, a key", lambda b, word: b.manifest.update({word: 1}))
    for path in strings(whole.config):
        lie(f"config {path}", lambda b, word: put(b.config, path, word))
    for member in whole.member:
        if not member.endswith(".safetensors"):
            continue
        tree, _ = forge.unpack_safetensors(whole.member[member])
        tensor = [name for name in tree if name != "__metadata__"][0]
        for path in strings({k: tree[k] for k in ("__metadata__", tensor)}):
            lie(f"{member} {path}", lambda b, word: lie_in_header(
                b, member, lambda t: put(t, path, word)))
        lie(f"{member}, a tensor", lambda b, word: lie_in_header(
            b, member, lambda t: rename(t, tensor, tensor + word)))
    for member in ("carried/config.json", "ranking.safetensors", "weights/rest.safetensors"):
        lie(f"the name of {member}", lambda b, word: rename(b.member, member, member + word))


def checkpoint(title, golden, change):
    """Make a checkpoint with one file changed by `change`, which gets its folder and the payload."""
    global lies
    kind = title.split()[0]
    for word in (WORD,) if kind in seen else (WORD, BYTES):
        shutil.rmtree("lied", ignore_errors=True)
        shutil.copytree("model", "lied")
        shutil.copy(f"{golden}/text/mixtral.json", "lied/tokenizer.json")
        change(pathlib.Path("lied"), word)
        lies += 1
        lied = ["fm-rank", "--model", "lied", "--dry-run", "-o", "x"]
        check(title, lied + ["--tokens", "lied/tokens.npy"])
        check(title, lied + ["--text", "lied/text.jsonl", "--seq-len", "8"])
    seen.add(kind)


def edit_json(file, change):
    tree = json.loads(file.read_text())
    change(tree)
    file.write_bytes(json.dumps(tree, ensure_ascii=False).encode("utf-8", "surrogateescape"))


def checkpoints(golden):
    model = pathlib.Path("model")
    for file in ("config.json", "model.safetensors.index.json"):
        for path in strings(json.loads((model / file).read_text())):
            checkpoint(f"{file} {path}", golden, lambda d, word: edit_json(
                d / file, lambda tree: put(tree, path, word)))
    tokenizer = json.loads(pathlib.Path(golden, "text/mixtral.json").read_text())
    for path in strings({k: v for k, v in tokenizer.items() if k != "model"}):
        checkpoint(f"tokenizer.json {path}", golden, lambda d, word: edit_json(
            d / "tokenizer.json", lambda tree: put(tree, path, word)))
    checkpoint("tokenizer.json, its type", golden, lambda d, word: edit_json(
        d / "tokenizer.json", lambda tree: put(tree, ("model", "type"), word)))
    shard = "model-00001-of-00002.safetensors"

    def tensor(folder, word):
        b = forge.Bundle("family.fm")
        b.member = {"x": (folder / shard).read_bytes()}
        lie_in_header(b, "x", lambda t: rename(t, [n for n in t if n != "__metadata__"][0], "x" + word))
        (folder / shard).write_bytes(b.member["x"])
    checkpoint("a tensor", golden, tensor)
    raw = lambda word: word.encode("utf-8", "surrogateescape")
    checkpoint("a text's field", golden, lambda d, word: (d / "text.jsonl").write_bytes(
        b'{"' + raw(word) + b'": "x"}\n'))
    checkpoint("a token file's header", golden, lambda d, word: (d / "tokens.npy").write_bytes(
        (d / "tokens.npy").read_bytes().replace(b"'<", b"'" + raw(word)[:4], 1)))
    for word in (WORD, BYTES):
        check("a file's name", ["fm-verify", "/nowhere/" + word])
        check("a model's name", ["fm-rank", "--model", word, "--tokens", word, "-o", "x"])
        check("an option", ["fm-rank", "--" + word])


if __name__ == "__main__":
    os.environ["TERM"] = "dumb"
    shutil.copytree(f"{sys.argv[1]}/odd-mixtral", "model")
    pathlib.Path("model/text.jsonl").write_text('{"text": "a text of some words"}\n' * 40)
    bundles()
    checkpoints(sys.argv[1])
    print("enough of them" if lies > 100 and runs > 400 else f"{lies} lies, {runs} runs")
