#!/usr/bin/env python3
"""Make small files and directories that must be refused (those named good-* must be read).

    python3 tests/bad/make.py FOLDER        needs nothing but Python; `make tests` makes build/bad

A name begins with the class of the case (st, ix, tr, ...) and ends with the fault.  checkpoints.py,
calibration.py, streams.py and signatures.py make the classes.  EXPECT, maintained by hand, has the
reader, the exit code and the error message of each; tests/unit/test_bad.c compares the readers with it.
Tests make large files (a header of 100 MB, a hole of 8 TB, a million tensors), FIFOs and links themselves.
"""
import os
import shutil
import sys

from calibration import tokens
from checkpoints import configs, directories, safetensors, texts
from signatures import signatures
from streams import frames, manifests, tars


def main():
    folder = sys.argv[1]
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    os.chdir(folder)
    for make in (safetensors, directories, configs, texts, tokens, tars, manifests, frames, signatures):
        make()


if __name__ == "__main__":
    main()
