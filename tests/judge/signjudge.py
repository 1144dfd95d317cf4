#!/usr/bin/env python3
"""Check signatures against the model-signing package of PyPI.  Run by `make judge`, and by
judge.sh --publish.

fm-verify and the package each sign an export and a bundle of golden/odd-mixtral, with keys that openssl(1)
generates on three curves; the other must verify the signature.  Then each must refuse files that were changed
after either signed them.  Prints one line per check; the exit status is 1 if one fails.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from model_signing import hashing, signing

MODEL = Path(__file__).resolve().parents[2] / "golden/odd-mixtral"
CURVES = ("P-256", "P-384", "P-521")
THEIRS = Path(sys.executable).parent / "model_signing"

made = failed = 0


def say(good, text):
    global made, failed
    made += 1
    failed += not good
    print(f"{'ok  ' if good else 'FAIL'} {text}", flush=True)


def judged(what):
    print(f"{made} checks of {what}, {failed} failed")
    return failed > 0


def run(*command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False)
    return done.returncode, (done.stdout + done.stderr).strip().split("\n")[-1]


def tool(*command):
    status, text = run(*command)
    if status:
        sys.exit(f"{command[0]}: {text}")


def make(folder):
    stage = ["--model", MODEL, "-q"]
    tokens = ["--tokens", MODEL / "tokens.npy", "--precision", "f32"]
    tool("fm-rank", *stage, *tokens, "-o", folder / "ranked")
    tool("fm-train", *stage, *tokens, "--method", "saliency", "--budget-step", "0.2", "-o", folder / "trained",
         folder / "ranked")  # fmt: skip
    tool("fm-pack", *stage, "-o", folder / "family.fm", folder / "trained")
    tool("fm-pack", "-q", "--export", folder / "out40", "--budget", "0.4", folder / "family.fm")
    (folder / "out40/sub").mkdir()
    (folder / "out40/sub/a").write_text("a")
    (folder / "out40/sub-b").write_text("b")  # sorts before sub/a by bytes, after it by path components
    for curve in CURVES:
        tool("openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", f"ec_paramgen_curve:{curve}",
             "-out", folder / f"{curve}.pem")  # fmt: skip
        tool("openssl", "pkey", "-in", folder / f"{curve}.pem", "-pubout", "-out", folder / f"{curve}.pub")


def signature_of(target):
    return target / "model.sig" if target.is_dir() else Path(f"{target}.sig")


def ours_signs(target, key):
    return run("fm-verify", "-q", "--force", "--sign", key, target)


def theirs_signs(target, key, *options):
    return run(THEIRS, "sign", "key", target, "--signature", signature_of(target), "--private_key", key, *options)


def ours_verifies(target, pub):
    return run("fm-verify", "-q", "--trusted", pub, target)


def theirs_verifies(target, pub, *options):
    return run(THEIRS, "verify", "key", target, "--signature", signature_of(target), "--public_key", pub, *options)


SIDES = (("ours", ours_signs, "theirs", theirs_verifies), ("theirs", theirs_signs, "ours", ours_verifies))


def crossed(folder):
    for name, sign, other, verify in SIDES:
        for curve in CURVES:
            for target in (folder / "out40", folder / "family.fm"):
                signature_of(target).unlink(missing_ok=True)
                status, text = sign(target, folder / f"{curve}.pem")
                what = f"{curve}, {target.name}: {name} signs"
                say(status == 0, f"{what}: {text}")
                status, text = verify(target, folder / f"{curve}.pub")
                say(status == 0, f"{what}, {other} verifies: {text}")
                status, text = verify(target, folder / f"{CURVES[CURVES.index(curve) - 1]}.pub")
                say(status != 0, f"{what}, {other} refuses another key: {text}")


def changed(folder):
    """Both sides must refuse files that were changed after either side signed them."""

    def flip(target):
        data = bytearray((target / "model.safetensors").read_bytes())
        data[9000] ^= 1
        (target / "model.safetensors").write_bytes(data)

    changes = {
        "a bit flipped": flip,
        "a file added": lambda t: (t / "notes.txt").write_text(""),
        "a file removed": lambda t: (t / "config.json").unlink(),
        "a file renamed": lambda t: (t / "sub-b").rename(t / "sub-c"),
    }
    pub = folder / "P-256.pub"
    for name, sign, _, _ in SIDES:
        for what, change in changes.items():
            target = folder / "changed"
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(folder / "out40", target)
            signature_of(target).unlink(missing_ok=True)
            sign(target, folder / "P-256.pem")
            change(target)
            for who, verify in (("ours", ours_verifies), ("theirs", theirs_verifies)):
                status, text = verify(target, pub)
                say(status != 0, f"{what} after {name} signed: {who} refuses: {text[:100]}")


def downloads(folder):
    """Check a download with the files that the hub and its client add, and a snapshot of symbolic links
    in the client's cache."""
    pub, target = folder / "P-256.pub", folder / "download"
    shutil.copytree(folder / "out40", target)
    signature_of(target).unlink(missing_ok=True)
    ours_signs(target, folder / "P-256.pem")
    (target / ".cache/huggingface").mkdir(parents=True)
    (target / ".cache/huggingface/x").write_text("x")
    (target / ".gitattributes").write_text("x")
    say(theirs_verifies(target, pub)[0] == 0, "theirs ignores .cache and .gitattributes, as our signature says")
    say(ours_verifies(target, pub)[0] == 0, "ours ignores them, too")
    signature_of(target).unlink()
    theirs_signs(target, folder / "P-256.pem")
    say(ours_verifies(target, pub)[0] == 0, "ours verifies a signature of theirs that lists files in .cache")
    (target / ".cache/huggingface/x").write_text("y")
    say(ours_verifies(target, pub)[0] == 1, "ours refuses it after such a file was changed")

    snapshot = folder / "hub/models--me--mine/snapshots/0123"
    blobs = folder / "hub/models--me--mine/blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for file in (folder / "out40").iterdir():
        if file.is_file() and file.name != "model.sig":
            shutil.copy(file, blobs / file.name)
            (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")
    theirs_signs(snapshot, folder / "P-256.pem", "--allow_symlinks")
    say(ours_verifies(snapshot, pub)[0] == 0, "ours verifies their signature of a snapshot in the cache")
    signature_of(snapshot).unlink()
    ours_signs(snapshot, folder / "P-256.pem")
    copy = folder / "copy"
    shutil.copytree(snapshot, copy)
    say(theirs_verifies(copy, pub)[0] == 0, "theirs verifies our signature of a snapshot, on a copy without links")


def other_kinds(folder):
    """Ours must refuse kinds of signatures that the package makes but its command line does not verify."""
    target = folder / "other"
    shutil.copytree(folder / "out40", target)
    kinds = {
        "blake2b": hashing.Config().use_file_serialization(hashing_algorithm="blake2"),
        "shards": hashing.Config().use_shard_serialization(),
    }
    for name, config in kinds.items():
        signature_of(target).unlink(missing_ok=True)
        config.set_ignored_paths(paths=[target / "model.sig"])
        signing.Config().use_elliptic_key_signer(private_key=folder / "P-256.pem").set_hashing_config(config).sign(
            target, signature_of(target)
        )
        status, text = ours_verifies(target, folder / "P-256.pub")
        say(status == 78, f"{name}: ours refuses: {text}")


def main():
    with tempfile.TemporaryDirectory() as top:
        folder = Path(top)
        make(folder)
        crossed(folder)
        changed(folder)
        downloads(folder)
        other_kinds(folder)
    return judged("signatures")


if __name__ == "__main__":
    sys.exit(main())
