#!/usr/bin/env python3
"""Make the wheel fm-runtime: libfm_clip with its Python interface (fm_clip), the modelling file and the
package for SGLang, to be installed next to transformers, vLLM and SGLang.  `make wheel`.

    wheel.py LIBRARY VERSION FOLDER     writes FOLDER/fm_runtime-VERSION-py3-none-PLATFORM.whl, prints its path

The library is loaded by ctypes and does not link to Python, so one wheel works with Python 3.10 and later.
PLATFORM is manylinux_2_X if the library needs no symbol of a glibc newer than 2.X and no libraries
except those that every Linux has (PEP 600); otherwise linux_MACHINE.

No packaging tools are needed: a wheel is a zip file with a list of its files and digests.
Timestamps come from SOURCE_DATE_EPOCH: with it, the same library gives the same bytes.
"""

import base64
import hashlib
import os
import platform
import re
import subprocess
import sys
import time
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
EVERYWHERE = {"libc.so.6", "libm.so.6", "libdl.so.2", "librt.so.1", "libpthread.so.0", "libgcc_s.so.1"}
MODULES = ["fm_clip/__init__.py", "fm_clip/py.typed", "fm_sglang/__init__.py", "fm_sglang/models.py", "modeling_fm.py"]
METADATA = """\
Metadata-Version: 2.1
Name: fm-runtime
Version: {version}
Summary: Runs exports of the fm suite in transformers, vLLM and SGLang
Requires-Python: >=3.10
Classifier: Private :: Do Not Upload
Description-Content-Type: text/plain

fm_clip: libfm_clip and a typed Python interface to it for PyTorch tensors; the modelling file of
ragged and elastic exports finds the library here by itself.
modeling_fm: that modelling file, for `vllm serve --worker-extension-cls modeling_fm.FmWorker`.
fm_sglang: for SGLANG_EXTERNAL_MODEL_PACKAGE=fm_sglang.

PyTorch must be installed.  It is not listed as a requirement, so that pip does not replace the version
that the runtime chose.  No licence has been chosen for this software, and it is not published.
"""


def read(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def machine_of(library):
    """The machine that an ELF library was built for, which may differ from this one."""
    number = int.from_bytes(library.read_bytes()[18:20], "little")
    return {62: "x86_64", 183: "aarch64"}.get(number) or platform.machine()


def platform_of(library):
    """The platform tag."""
    machine = machine_of(library)
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", read("readelf", "-dW", library)))
    symbols = read("readelf", "-VW", library)
    versions = [tuple(map(int, v.split("."))) for v in re.findall(r"Name: GLIBC_([0-9.]+)", symbols)]
    loader = {name for name in needed if name.startswith("ld-linux")}
    if not needed - loader <= EVERYWHERE or not versions:
        return f"linux_{machine}"
    newest = max(versions)
    return f"manylinux_{newest[0]}_{max(newest[1], 17)}_{machine}"


def main():
    library, version, folder = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))
    date = max(time.gmtime(epoch)[:6], (1980, 1, 1, 0, 0, 0))
    tag = f"py3-none-{platform_of(library)}"
    info = f"fm_runtime-{version}.dist-info"
    wheel = f"Wheel-Version: 1.0\nGenerator: fm\nRoot-Is-Purelib: false\nTag: {tag}\n"
    files = {name: (HERE / name).read_bytes() for name in MODULES}
    files["fm_clip/libfm_clip.so.1"] = library.read_bytes()
    files[f"{info}/METADATA"] = METADATA.format(version=version).encode()
    files[f"{info}/WHEEL"] = wheel.encode()
    rows = []
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.append(f"{name},sha256={digest},{len(data)}\n")
    record = f"{info}/RECORD"
    files[record] = ("".join(rows) + f"{record},,\n").encode()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"fm_runtime-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as out:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, date)
            entry.external_attr = (0o100755 if name.endswith(".so.1") else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            out.writestr(entry, data, compresslevel=9)
    print(path)


if __name__ == "__main__":
    main()
