#!/usr/bin/env python3
"""Check exports and fm-bench quality --convention wikitext with lm-eval 0.4.13.  Run by `make judge` in a
separate environment.

The commands of fm-guide(7), EVALUATING, are run from the page on an export of each layout that
transformers loads; layouts that store the same mask must have the same scores.  Then lm-eval's task
`wikitext`, its data replaced by documents made here, measures an export; fm-bench must print the same word
perplexity, byte perplexity and bits per byte, and the original's bits per byte must differ.  The same is
checked with a tokenizer that, like Qwen's, adds no token before a text, so that lm-eval adds </s>.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import lm_eval
import yaml
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks.wikitext import preprocess_wikitext

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "golden/tiny-mixtral"
LAYOUTS = "padded", "uniform", "ragged", "elastic", "layer"
MAX_LENGTH = 100
TOLERANCE = 1e-5  # relative, of bits per byte
made = failed = 0


def say(good, text):
    global made, failed
    made += 1
    failed += not good
    print(f"{'ok  ' if good else 'FAIL'} {text}", flush=True)


def tool(*command):
    subprocess.run([str(x) for x in command], check=True, stdout=subprocess.DEVNULL)


def make_exports(folder):
    data = ["-q", "-m", MODEL, "-t", MODEL / "calib.npy", "--seq-len", 128, "--max-tokens", 4096]
    tool("fm-rank", *data, "-o", folder / "ranked")
    tool("fm-train", *data, "--method", "saliency", "-o", folder / "trained", folder / "ranked")
    tool("fm-pack", "-q", "-m", MODEL, "-o", folder / "family.fm", folder / "trained")
    for layout in LAYOUTS:
        tool("fm-pack", "-q", "--export", folder / layout, "--budget", 0.4, "--layout", layout, folder / "family.fm")


def run_page(folder, layout):
    """Run the page's commands on one layout; returns lm_eval's results of the task."""
    here = folder / f"run-{layout}"
    here.mkdir()
    (here / "out20").symlink_to(folder / layout)
    page = subprocess.run([sys.executable, ROOT / "tests/pages.py", "take", "fm-guide.7", "judge/lmjudge.py"],
                          check=True, capture_output=True, text=True).stdout  # fmt: skip
    own = f"lm_eval() {{ {sys.executable} -m lm_eval \"$@\"; }}\n"
    done = subprocess.run(["bash", "-ec", own + page], cwd=here, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        print(done.stdout[-1500:] + done.stderr[-1500:])
    say(done.returncode == 0, f"{layout}: fm-guide(7)'s commands")
    result = next(here.glob("results/*/results_*.json"), None)
    return json.loads(result.read_text())["results"]["facts"] if result else {}


def judge_page(folder):
    scores = {x: run_page(folder, x) for x in LAYOUTS}
    for layout, score in scores.items():
        say(score.get("sample_len") == 2 and 0 <= score.get("acc,none", -1) <= 1, f"{layout}: acc {score.get('acc,none')}")
    for layout in "ragged", "elastic":
        say(scores[layout] == scores["padded"], f"{layout}: the same scores as padded")


def write_pages(path):
    """Write documents of many lengths, with everything that the detokeniser changes; two begin with the
    text of a token that may be added before them."""
    text = ' = Title = \n \n The dogs \' end , ( 1 @,@ 000 @.@ 5 ) "  quoted "  [ x ; y ] { z } N ° C : so ! '
    pages = [text * n + "x" * n for n in (1, 2, 3, 9, 30)] + ["", "a", "\u00a0b\u2003c  d", "<s>" + text, "</s>" + text]
    path.write_text("".join(json.dumps({"page": p}) + "\n" for p in pages))


def theirs(model, pages):
    config = {
        "task": "wikitext_local", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(pages)}},
    }  # fmt: skip
    return lm_eval.simple_evaluate(model=HFLM(pretrained=str(model), dtype="float32", device="cpu", batch_size=1,
                                              max_length=MAX_LENGTH, trust_remote_code=True),
                                   tasks=[own_task(config)], bootstrap_iters=0)["results"]["wikitext_local"]  # fmt: skip


def own_task(config):
    """lm-eval's task from its own YAML file, with other data."""
    class Loader(yaml.SafeLoader):
        pass

    Loader.add_constructor("!function", lambda loader, node: getattr(preprocess_wikitext, loader.construct_scalar(node).split(".")[1]))
    file = Path(preprocess_wikitext.__file__).with_name("wikitext.yaml")
    whole = yaml.load(file.read_text(), Loader)
    drop = "dataset_name", "training_split", "validation_split"
    return {k: v for k, v in whole.items() if k not in drop} | config


def without_bos(model, folder):
    """Copy a model, with a tokenizer that adds no token before a text."""
    shutil.copytree(model, folder)
    for file, keys in ("tokenizer_config.json", ["bos_token"]), ("tokenizer.json", ["post_processor"]):
        whole = json.loads((folder / file).read_text())
        (folder / file).write_text(json.dumps(whole | dict.fromkeys(keys)))
    return folder


def judge_wikitext(name, model, export, pages):
    report = pages.with_name("report.json")
    tool("fm-bench", "quality", "-q", "-f", "--convention", "wikitext", "--eval-text", pages, "--text-field", "page",
         "--seq-len", MAX_LENGTH, "--precision", "f32", "--model", model, "--report", report, export)  # fmt: skip
    ours = json.loads(report.read_text())
    want = theirs(export, pages)
    for key in "bits_per_byte", "byte_perplexity", "word_perplexity":
        miss = abs(ours[key] / want[f"{key},none"] - 1)
        limit = TOLERANCE if key == "bits_per_byte" else 100 * TOLERANCE  # exponentials have larger errors
        say(miss <= limit, f"{name}, {key}: {ours[key]:.6g}, lm-eval {want[f'{key},none']:.6g}, {miss:.1e} relative")
    return ours["bits_per_byte"]


def judge_conventions(folder):
    pages = folder / "pages.jsonl"
    write_pages(pages)
    ours = judge_wikitext("<s> first", MODEL, folder / "uniform", pages)
    miss = abs(ours / theirs(MODEL, pages)["bits_per_byte,none"] - 1)
    say(miss > 10 * TOLERANCE, f"the original's bits per byte differ: {miss:.1e} relative")
    plain = [without_bos(model, folder / f"{model.name}-plain") for model in (MODEL, folder / "uniform")]
    other = judge_wikitext("no token first", *plain, pages)
    say(abs(other / ours - 1) > 10 * TOLERANCE, f"the token before a document changes them: {abs(other / ours - 1):.1e}")


def main():
    with tempfile.TemporaryDirectory() as folder:
        make_exports(Path(folder))
        judge_conventions(Path(folder))
        judge_page(Path(folder))
    print(f"lmjudge.py: {made} checks, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    sys.exit(main())
