#!/usr/bin/env python3
"""Make golden/bad/: small files and directories that must be refused (those named good-* must be read).

    python3 golden/make/bad.py        from the root; needs nothing but Python

A name begins with the class of the case (st, ix, tr, ...) and ends with the fault.  badcheckpoint.py,
badtokens.py, badstream.py and badsign.py make the classes.  golden/bad/EXPECT, maintained by hand, has the
reader, the exit code and the error message of each; tests/unit/test_bad.c compares the readers with it.
Tests make large files (a header of 100 MB, a hole of 8 TB, a million tensors), FIFOs and links themselves.
"""
import os
import shutil

from badcheckpoint import configs, directories, safetensors, texts
from badfile import ROOT
from badsign import signatures
from badstream import frames, manifests, tars
from badtokens import tokens


def main():
    for name in os.listdir(ROOT):
        path = os.path.join(ROOT, name)
        if os.path.isdir(path):
            shutil.rmtree(path)
        elif name != "EXPECT":
            os.remove(path)
    for make in (safetensors, directories, configs, texts, tokens, tars, manifests, frames, signatures):
        make()


if __name__ == "__main__":
    main()
