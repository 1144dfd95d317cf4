#!/usr/bin/env python3
"""Check bills of materials against the published schema of CycloneDX 1.6.  Part of `make judge`.

    judge.sh --publish      this and signjudge.py, in their own environment

The bills of a bundle, whose parent is in a Hugging Face cache, and of exports are validated by
cyclonedx-python-lib, which contains the schema, and parsed into objects.  Digests are compared with hashlib's,
and a bill that is broken on purpose must fail.  Prints one line per check; the exit status is 1 if one fails.
"""

import hashlib
import json
import sys
import tempfile
from pathlib import Path

from cyclonedx.model.bom import Bom
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from signjudge import MODEL, judged, say, tool

STRICT = JsonStrictValidator(SchemaVersion.V1_6)


def validate(name, bill):
    text = bill.read_text()
    error = STRICT.validate_str(text)
    say(error is None, f"{name}: valid CycloneDX 1.6{'' if error is None else f': {error}'[:300]}")
    data = json.loads(text)
    read = Bom.from_json(data)
    say(str(read.serial_number) in data["serialNumber"] and len(read.components) == len(data["components"]),
        f"{name}: read as objects, {len(read.components)} files")  # fmt: skip
    for component in data["components"]:
        file = bill.parent / component["name"]
        say(hashlib.sha256(file.read_bytes()).hexdigest() == component["hashes"][0]["content"],
            f"{name}: digest of {component['name']}")  # fmt: skip
    return data


def main():
    with tempfile.TemporaryDirectory() as top:
        folder = Path(top)
        snapshot = folder / "hub/models--me--mine/snapshots/0123456789abcdef0123456789abcdef01234567"
        snapshot.mkdir(parents=True)
        for file in MODEL.iterdir():
            (snapshot / file.name).write_bytes(file.read_bytes())
        (snapshot / "README.md").write_text("---\nlicense: apache-2.0\n---\n# Mine\n")
        stage = ["--model", snapshot, "-q"]
        tokens = ["--tokens", MODEL / "tokens.npy", "--precision", "f32"]
        tool("fm-rank", *stage, *tokens, "-o", folder / "ranked")
        tool("fm-train", *stage, *tokens, "--eval-tokens", MODEL / "tokens.npy", "--method", "saliency",
             "--budget-step", "0.2", "-o", folder / "trained", folder / "ranked")  # fmt: skip
        tool("fm-recover", *stage, *tokens, "--steps", "1", "-o", folder / "recovered", folder / "trained")
        tool("fm-pack", *stage, "-o", folder / "family.fm", folder / "recovered")
        tool("fm-pack", "-q", "--bom", *stage[:2], folder / "family.fm")
        data = validate("bundle", folder / "family.fm.bom.cdx.json")
        parent = data["metadata"]["component"]["pedigree"]["ancestors"][0]
        say(parent["purl"] == "pkg:huggingface/me/mine@0123456789abcdef0123456789abcdef01234567", parent["purl"])
        for layout in ("ragged", "elastic", "uniform"):
            out = folder / layout
            budget = [] if layout == "elastic" else ["--budget", "0.4"]
            tool("fm-pack", "-q", "--export", out, "--layout", layout, *budget, folder / "family.fm")
            tool("fm-bench", "quality", "-q", "--eval-tokens", MODEL / "tokens.npy", "--seq-len", "8",
                 "--max-eval-tokens", "80", "--record", out)  # fmt: skip
            tool("fm-pack", "-q", "--bom", "--from", folder / "family.fm", out)
            data = validate(layout, out / "bom.cdx.json")
        del data["bomFormat"]
        say(STRICT.validate_str(json.dumps(data)) is not None, "a bill without bomFormat does not validate")
        data["bomFormat"] = "CycloneDX"
        data["components"][0]["hashes"][0]["content"] = "zz"
        say(STRICT.validate_str(json.dumps(data)) is not None, "an invalid digest is refused")
    return judged("bills of materials")


if __name__ == "__main__":
    sys.exit(main())
