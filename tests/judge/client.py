"""What the three client scripts share.  Run by tests/judge/clients.py, each in its own environment.

    python client_NAME.py JOB      (a JSON file)

A job is {"ids": [[...], ...], "cells": [{"name", "path", "budgets": null or [...], ...}]}:
sequences of token ids, and directories to load; a cell may have "environment", to load it in, and
"channels", how many of experts are to be in memory then.  For each cell one line is printed,
"FM-CELL " and JSON: {"name", "logprobs": one list per budget (one list where budgets is null)} or
{"name", "error"}; before them {"version"}.  logprobs are those of every next token, sequence after
sequence.
"""

import json
import os
import signal
import sys
import traceback

MARK = "FM-CELL "


def say(**fields):
    print("\n" + MARK + json.dumps(fields), flush=True)


def short(error):
    text = " ".join(str(error).split()) or traceback.extract_tb(error.__traceback__)[-1].line
    return f"{type(error).__name__}: {text}"[:200]


def check_channels(cell, model):
    """An ignored load cap gives the same numbers: count the parameters."""
    loaded = sum(len(p) for name, p in model.named_parameters() if name.endswith("experts.down"))
    if loaded != cell.get("channels", loaded):
        raise ValueError(f"{loaded} channels of experts are loaded, not {cell['channels']}")


def run_cell(cell, ids, open_model):
    environment = cell.get("environment", {})
    os.environ.update(environment)
    try:
        with open_model(cell) as (score, switch):
            rows = []
            for budget in cell["budgets"] or [None]:
                if budget is not None:
                    switch(budget)
                rows.append(score(ids))
        say(name=cell["name"], logprobs=rows)
        return True
    except Exception as error:
        traceback.print_exc()
        say(name=cell["name"], error=short(error))
        return False
    finally:
        for key in environment:
            del os.environ[key]


def run_apart(*arguments):
    """A cell in a process of its own, which finds everything imported; True where it ended well.
    Once more where it crashed: a process forked off threads that load libraries may."""
    for _ in range(2):
        child = os.fork()
        if child == 0:
            run_cell(*arguments)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        if not os.WIFSIGNALED(status) or os.WTERMSIG(status) == signal.SIGKILL:
            break
    return status == 0


def run(version, open_model, apart=False):
    """open_model(cell) is a context manager that yields (score, switch): score(ids) gives the
    log-probabilities, switch(budget) changes an elastic model while it is loaded."""
    with open(sys.argv[1]) as f:
        job = json.load(f)
    say(version=version)
    for cell in job["cells"]:
        if not apart:
            if not run_cell(cell, job["ids"], open_model):
                break  # what is left in this process may fail the next one: the caller begins anew
        elif not run_apart(cell, job["ids"], open_model):
            say(name=cell["name"], error="the process ended without an answer")
    os._exit(0)  # servers leave threads behind that would keep this process
