#!/usr/bin/env python3
"""Make the files under golden/ from seeds.  `make golden` runs it in the judge's environment.

Commands; without arguments, all except `trained` and `real` are run in this order:
    make.py odd        odd-*: weights, tokens and goldens (seconds)
    make.py odd-NAME   one of them
    make.py train      tiny-mixtral: tokenizer, tokens, weights (minutes; the log goes to stdout)
    make.py tiny       tiny-mixtral: goldens of the existing model
    make.py baselines  baselines/: results of other pruners' rules on some odd models
    make.py ahead      ahead/: layers for multi-token prediction
    make.py trained    the models of trained.py, and test.npy of tiny-mixtral, into build/trained
    make.py real       the models of realtext.py, into build/trained
    make.py digests    write the list of digests at the end of golden/README again
"""

import subprocess
import sys
from functools import partial
from pathlib import Path

import torch

import ahead
import families
import odd
import realtext
import quantised
import baselines
import tiny
import trained

HERE = Path(__file__).resolve().parent.parent
ODD = {"odd-mixtral": odd.MIXTRAL} | families.ROWS | quantised.ROWS
MODELS = [*ODD, "tiny-mixtral"]
RULE = 78 * "-"  # the line below README's last heading


def make_odd(*names):
    for name in names or ODD:
        odd.make(ODD[name], HERE / name)
        odd.make_goldens(ODD[name], HERE / name)


def train_tiny():
    tiny.make(HERE / "tiny-mixtral")


def make_tiny():
    tiny.make_goldens(HERE / "tiny-mixtral")


def make_baselines():
    baselines.make_all(HERE)


def make_ahead():
    for name in ahead.ROWS:
        ahead.make(HERE / name, HERE / "ahead")


def train_others():
    built = HERE.parent / "build" / "trained"
    trained.make_test(HERE / "tiny-mixtral", built / "tiny-mixtral")
    for name, row in trained.ROWS.items():
        trained.make(row, built / name)


def train_real():
    for name, row in realtext.ROWS.items():
        realtext.make(row, HERE.parent / "build" / "trained" / name)


def renew_digests():
    """Write README's last section again: xxhsum's line for each file in the model folders."""
    folders = [*MODELS, "baselines", "ahead"]
    files = sorted(str(p.relative_to(HERE)) for d in folders for p in (HERE / d).iterdir())
    digests = subprocess.run(
        ["xxhsum", "-H2", *files], cwd=HERE, check=True, capture_output=True, text=True
    ).stdout
    readme = HERE / "README"
    text, _ = readme.read_text().split("\n" + RULE + "\n")
    readme.write_text(f"{text}\n{RULE}\n{digests}")


COMMANDS = {
    "odd": make_odd,
    "train": train_tiny,
    "tiny": make_tiny,
    "baselines": make_baselines,
    "ahead": make_ahead,
    "trained": train_others,
    "real": train_real,
    "digests": renew_digests,
}


def main(names):
    torch.set_num_threads(1)  # with several threads, sums depend on how the work is divided
    torch.use_deterministic_algorithms(True)
    commands = COMMANDS | {name: partial(make_odd, name) for name in ODD}
    for name in names:
        if name not in commands:
            raise SystemExit(f"make.py: unknown command '{name}'; the commands are: {' '.join(commands)}")
        commands[name]()


if __name__ == "__main__":
    main(sys.argv[1:] or [name for name in COMMANDS if name not in ("trained", "real")])
