"""Write the tables of study.py: the cells, the paper's claims about them, and whether they hold here."""

import shlex

BUDGETS = (0.2, 0.4, 0.6)
NOT_RUN = "not run"
POINTS = ("0.2", "0.3", "0.4", "0.5", "0.6")

HEAD = """# The paper's ablations, on small trained models

Written by tests/measure/study.py, which describes the study and how to continue it.  The models are
golden/tiny-mixtral (4 layers of 8 experts with 256 channels, top-2) and two models of
golden/make/trained.py: choose-qwen2 (3 layers of 12 experts with 64 channels, top-3, a shared expert) and
choose-phimoe (3 layers of 6 experts with 160 channels, top-2).  They were trained for minutes on generated
text, so results may not carry over between these and the models that people use.

Figures are cross-entropies on 64 sequences of 128 tokens that are used for nothing else (lower is better):
the mean over the seeds, followed by the maximum minus the minimum.  Between two masks of a family, the loss
is interpolated linearly.  The paper reports means of seven zero-shot accuracies (higher is better).  The
tables of claims state, for each budget, whether the claim held in every seed that was run (held), in some
(in part) or in none (no), the number of seeds in which it held, and the mean difference of the losses.

The calibration data are 192 sequences of 128 tokens (calib.npy).  The seed determines their order, the noise
of training, the initial adapter, the shuffled masks and the shuffled channels.  Sizes are smaller than the
tools' defaults (in parentheses), so that the study takes hours on one core: 200 steps of training (500), and
at most as many again to reach the last budget; masks every 0.05 up to 0.65 (every 0.01 to 0.80); 100 steps of
recovery (200).  `not run` marks a cell whose command, below, has not been run; study.py runs it.
"""


# --- figures ----------------------------------------------------------------------------------------


def between(rows, budget):
    """The loss at a budget, interpolated linearly between the nearest masks; the last mask's loss up to 0.02
    beyond it, then None."""
    for (b0, c0), (b1, c1) in zip(rows, rows[1:]):
        if b0 <= budget <= b1:
            return c0 + (budget - b0) / (b1 - b0) * (c1 - c0) if b1 > b0 else c1
    return rows[-1][1] if budget - rows[-1][0] < 0.02 else None


def spread(values):
    return f"{max(values) - min(values):.4f}" if len(values) > 1 else "(one seed)"


class Figures:
    """Losses by model, cell and budget, of the seeds that were run."""

    def __init__(self, study, seeds):
        self.study, self.seeds = study, seeds

    def of(self, model, name, budget):
        """{seed: loss}"""
        rows = {seed: self.study.losses(model, name, seed) for seed in self.seeds}
        found = {seed: between(r, budget) for seed, r in rows.items() if r}
        return {seed: loss for seed, loss in found.items() if loss is not None}

    def full(self, model):
        for seed in self.seeds:
            rows = self.study.losses(model, "learned", seed)
            if rows:
                return f"{rows[0][1]:.4f}"
        return NOT_RUN

    def cell(self, model, name, budget):
        losses = self.of(model, name, budget)
        if not losses:
            return NOT_RUN
        x = list(losses.values())
        part = f" ({len(x)} seeds)" if 1 < len(x) < len(self.seeds) else ""
        return f"{sum(x) / len(x):.4f} {spread(x)}{part}"

    def compare(self, model, better, worse, budget):
        """Compare two cells over the seeds that have both: in how many seeds the first loss is lower, and by how
    much."""
        a, b = self.of(model, better, budget), self.of(model, worse, budget)
        both = [b[seed] - a[seed] for seed in a if seed in b]
        if not both:
            return NOT_RUN
        wins = sum(x > 0 for x in both)
        said = "held" if wins == len(both) else "in part" if wins else "no"
        return f"{said}, {wins} of {len(both)}, {sum(both) / len(both):+.4f}"


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "| :-- |" + " --: |" * (len(head) - 1)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def losses_table(figures, model, names):
    rows = [[title] + [figures.cell(model, name, b) for b in BUDGETS] for name, title in names]
    if all(cell == NOT_RUN for row in rows for cell in row[1:]):
        return f"{model}: {NOT_RUN}\n"
    return f"{model}; full model {figures.full(model)}\n\n" + table(["", *map(str, BUDGETS)], rows)


def claims_table(figures, models, claims):
    rows = []
    for better, worse, title, paper in claims:
        for model in models:
            cells = [figures.compare(model, better, worse, b) for b in BUDGETS]
            if cells != [NOT_RUN] * len(BUDGETS) or model == models[0]:
                rows.append([title, paper, model, *cells])
    return table(["claim", "the paper's accuracies", "model", *map(str, BUDGETS)], rows)


# --- sections ---------------------------------------------------------------------------------------

ORDER = (
    ("learned", "ranked, 192 sequences"),
    ("few", "ranked, 4 sequences"),
    ("unranked", "the checkpoint's order"),
    ("shuffled", "channels shuffled"),
)
MASKS = (
    ("learned", "learned"),
    ("uniform", "uniform"),
    ("shuffle-layer", "learned, shuffled in layers"),
    ("shuffle-global", "learned, shuffled over the model"),
)
SECTIONS = (
    (
        "Order of channels",
        """The paper: appendix, Effect of Importance-Aware Channel Reordering, tab:ablation_reorder, Mixtral-8x7B,
no recovery, each order with masks learned on it: 54.43 unranked, 59.71 ranked by 100 samples, 60.00 by 5,000 at 20 %;
48.86, 53.43, 53.86 at 40 %.  "Importance-aware reordering is crucial", "further increasing the ranking
set yields only marginal gains".  The paper does not shuffle channels; those of a checkpoint have no
particular order, so shuffling them should make no difference.
""",
        ORDER,
        (
            ("learned", "unranked", "ranked beats the checkpoint's order", "60.00 54.43 at 20 %, 53.86 48.86 at 40 %"),
            ("learned", "shuffled", "ranked beats shuffled channels", "-"),
            ("learned", "few", "more samples beat fewer slightly", "60.00 59.71 at 20 %, 53.86 53.43 at 40 %"),
        ),
    ),
    (
        "Masks",
        """The paper: appendix, Effect of Expert-Wise Action Learning, tab:ablation_action_shuffle.  Mixtral-8x7B
at 20 %: learned 61.86, in-layer shuffle 60.43, uniform 60.14, global shuffle 59.14; at 60 %: 49.57, 46.00,
45.14, 44.14.  Qwen2-57B-A14B at 20 %: 58.43, 58.29, 58.14, 55.71; at 60 %: 58.57, 58.43, 57.43, 56.14.
"Destroying the learned structure consistently hurts", "global shuffle is consistently worse than in-layer
shuffle", the gap is larger at the tighter budget, and the in-layer shuffle costs Qwen2 less.  (The figures
of Mixtral's learned masks are those of the recovered model in tab:main_acc, so that table seems to use
recovered weights; here no weights are recovered.)
""",
        MASKS,
        (
            ("learned", "uniform", "learned beats uniform", "61.86 60.14 at 20 %, 49.57 45.14 at 60 %"),
            ("learned", "shuffle-layer", "learned beats shuffled in layers", "61.86 60.43, 49.57 46.00"),
            ("learned", "shuffle-global", "learned beats shuffled over the model", "61.86 59.14, 49.57 44.14"),
            ("shuffle-layer", "shuffle-global", "shuffled in layers beats shuffled over the model", "60.43 59.14, 46.00 44.14"),
        ),
    ),
    (
        "Recovery point",
        """The paper: appendix, Why the Middle Budget Generalizes Best, tab:ft_point_ablation, Mixtral-8x7B.  Recovered
at 20, 40, 60 %: measured at 20 % 60.86, 61.86, 60.71; at 40 % 54.57, 58.00, 57.14; at 60 % 42.86, 49.57, 50.29; mean
52.76, 56.48, 56.05.  "The 40% recovery point provides the best global trade-off"; recovery at 20 %
is not the best even at 20 %; at 60 % the best is recovery at 60 %.  And tab:main_acc against tab:ablation_reorder:
recovery at 40 % takes 60.00 to 61.86 at 20 % and 53.86 to 58.00 at 40 %.
""",
        (("learned", "not recovered"), *((f"recovered-{p}", f"recovered at {p}") for p in POINTS)),
        (
            ("recovered-0.4", "learned", "recovery at 0.4 helps", "61.86 60.00 at 20 %, 58.00 53.86 at 40 %"),
            ("recovered-0.4", "recovered-0.2", "recovery at 0.4 beats recovery at 0.2", "61.86 60.86, 58.00 54.57, 49.57 42.86"),
            ("recovered-0.4", "recovered-0.6", "recovery at 0.4 beats recovery at 0.6", "61.86 60.71, 58.00 57.14, 49.57 50.29"),
        ),
    ),
)
STRATEGIES = """The paper: Comparison of Fine-Tuning Strategies, fig:ft_method_compare, and tab:appendix_full_results,
Mixtral-8x7B: one point (SP) 61.86, 58.00, 49.57 at 20, 40, 60 %, many points (CP) 60.43, 55.00, 47.57.  "CP-FT
underperforms both per-budget fine-tuning and our single-point fine-tuning over most budgets", and one point
"stays much closer" to an adapter for each budget, whose results are only plotted.
"""


def mean_row(figures, model, name):
    """The mean over the budgets, then over the seeds that have all budgets."""
    by_seed = [figures.of(model, name, b) for b in BUDGETS]
    seeds = [s for s in by_seed[0] if all(s in x for x in by_seed)]
    means = [sum(x[s] for x in by_seed) / len(BUDGETS) for s in seeds]
    return f"{sum(means) / len(means):.4f} {spread(means)}" if means else NOT_RUN


def recovery_means(figures, models):
    rows = [
        [f"recovered at {p}"] + [mean_row(figures, model, f"recovered-{p}") for model in models] for p in POINTS
    ]
    return "Mean of the three budgets:\n\n" + table(["", *models], rows)


def per_budget(figures, model):
    return [figures.cell(model, f"recovered-{b}", b) for b in BUDGETS]


def strategies(figures, model):
    rows = [
        ["not recovered"] + [figures.cell(model, "learned", b) for b in BUDGETS],
        ["one point, 0.4 (--strategy single)"] + [figures.cell(model, "recovered-0.4", b) for b in BUDGETS],
        ["many points (--strategy cross)"] + [figures.cell(model, "cross", b) for b in BUDGETS],
        ["an adapter for each budget"] + per_budget(figures, model),
    ]
    text = f"## Recovery strategies\n\n{STRATEGIES}\n{model}; full model {figures.full(model)}\n\n"
    text += table(["", *map(str, BUDGETS)], rows) + "\n"
    return text + claims_table(figures, [model], (("recovered-0.4", "cross", "one point beats many", "61.86 60.43, 58.00 55.00, 49.57 47.57"),)) + "\n"


def commands(study, model, seed, cells):
    """Every command, once each, for one model and one seed."""
    seen = {}
    for m, cell, s in cells:
        if (m, s) == (model, seed):
            seen.setdefault(cell.name, shlex.join(study.command(m, cell, s)))
    return "```\n" + "\n".join(seen.values()) + "\n```\n"


def count_run(study, cells):
    cells = list(dict.fromkeys(cells))
    return sum(study.report(*cell).exists() for cell in cells), len(cells)


def write(study, models, seeds, cells, strategies_on):
    figures = Figures(study, seeds)
    out = [HEAD]
    done, all_cells = count_run(study, cells)
    out.append(f"{done} of {all_cells} cells have been run; seeds {', '.join(map(str, seeds))}.\n")
    for title, paper, names, claims in SECTIONS:
        out.append(f"## {title}\n\n{paper}")
        out += [losses_table(figures, model, names) for model in models]
        if title == "Recovery point":
            out.append(recovery_means(figures, models))
        out.append(claims_table(figures, models, claims))
    if strategies_on in models:
        out.append(strategies(figures, strategies_on).rstrip("\n") + "\n")
    out.append("## Commands\n\nAfter `make` and `tests/judge/judge.sh --golden trained`, `make study` runs these commands in this order.\n"
               "Those of one model and one seed are listed; -T 1 was also given, which changes no figure.  study.py\n"
               "shuffles the channels of build/study/MODEL/checkpoint-SEED.\n")  # fmt: skip
    for model in models:
        if model in (models[0], strategies_on):
            out.append(commands(study, model, seeds[0], cells))
    return "\n".join(out)
