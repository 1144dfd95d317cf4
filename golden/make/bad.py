#!/usr/bin/env python3
"""Make golden/bad/: small files and directories that must be refused (or, named good-, read).

    python3 golden/make/bad.py        from the root; needs nothing but Python

Each is named by what is wrong with it, after the class of the test list that badcheckpoint.py,
badtokens.py, badstream.py or badsign.py makes.  golden/bad/EXPECT, kept by hand, says for each which reader it
is for, the exit code and the sentence; tests/unit/test_bad.c holds the readers to it.  Large files (a
header of 100 MB, 8 TB of hole, a million tensors), FIFOs and links are made by the tests themselves
while they run.
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
