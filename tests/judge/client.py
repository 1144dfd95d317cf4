"""Code shared by the three client scripts, which tests/judge/clients.py runs, each in its own environment.

    python client_NAME.py JOB      (a JSON file)

A job is {"ids": [[...], ...], "cells": [{"name", "path", "budgets": null or [...], ...}]}:
sequences of token ids, and directories to load.  A cell may have "environment", variables to set while
it runs, and "channels", the number of expert channels that must then be loaded.

Each line of output is "FM-CELL " and JSON: first {"version"}, then for each cell {"name", "logprobs"} or
{"name", "error"}.  logprobs has one list per budget, or one list if budgets is null: the log-probability
of every next token, sequence after sequence.
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
    """Check how many channels are loaded: an ignored load cap would not change the log-probabilities."""
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
    """Run a cell in a forked process, so that nothing is imported again; return True unless the process crashed.
    A crash is retried once: forking while other threads load libraries can cause one."""
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
    log-probabilities, and switch(budget) sets the budget of a loaded elastic model."""
    with open(sys.argv[1]) as f:
        job = json.load(f)
    say(version=version)
    for cell in job["cells"]:
        if not apart:
            if not run_cell(cell, job["ids"], open_model):
                break  # the state of this process may make the next cell fail: the caller starts a new process
        elif not run_apart(cell, job["ids"], open_model):
            say(name=cell["name"], error="the process ended without an answer")
    os._exit(0)  # the servers' threads would keep this process running
