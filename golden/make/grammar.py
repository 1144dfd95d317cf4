"""Generate text of five domains from a seed; the small trained model is trained on it.

One invented lexicon, fixed by LEXICON_SEED, holds facts that a model can only memorise (which
adjective goes with which noun, where a person lives, which number a person has), so that expert
channels have something to store.  A document belongs to one domain; domains differ in characters and
syntax, so that experts can specialise.
"""

import random

LEXICON_SEED = 7
ONSETS = "b br d dr f g gl h k kr l m n p pl r s sk st t tr v z".split()
VOWELS = "a e i o u ai ou".split()
CODAS = ["", "", "n", "r", "l", "s", "t", "m"]


def invent(rng, count, syllables, taken):
    """`count` new words."""
    words = []
    while len(words) < count:
        parts = [rng.choice(ONSETS) + rng.choice(VOWELS) for _ in range(syllables)]
        word = "".join(parts) + rng.choice(CODAS)
        if word not in taken:
            taken.add(word)
            words.append(word)
    return words


class Lexicon:
    """Words, and facts that relate them to one another."""

    def __init__(self, seed=LEXICON_SEED):
        rng, taken = random.Random(seed), set()
        self.nouns = invent(rng, 400, 2, taken)
        self.verbs = [w + "s" for w in invent(rng, 150, 1, taken)]
        self.adjectives = invent(rng, 150, 2, taken)
        self.names = [w.capitalize() for w in invent(rng, 500, 2, taken)]
        self.cities = [w.capitalize() for w in invent(rng, 60, 2, taken)]
        self.trades = invent(rng, 40, 2, taken)
        self.functions = invent(rng, 200, 2, taken)
        self.fits = {n: rng.sample(self.adjectives, 3) for n in self.nouns}
        self.does = {n: rng.sample(self.verbs, 3) for n in self.nouns}
        self.takes = {v: rng.sample(self.nouns, 5) for v in self.verbs}
        self.person = {n: self._person(rng) for n in self.names}
        self.body = {f: self._body(rng) for f in self.functions}

    def _person(self, rng):
        city, trade = rng.choice(self.cities), rng.choice(self.trades)
        return {"city": city, "trade": trade, "id": rng.randrange(1000, 10000)}

    def _body(self, rng):
        """Facts about a function: its argument, operator, constant, and the function it calls."""
        return (
            rng.choice("xynk"),
            rng.choice("+-*"),
            rng.randrange(2, 10),
            rng.choice(self.functions),
        )


def prose(rng, lex):
    """Sentences; the object of each is the subject of the next."""
    noun, out = rng.choice(lex.nouns), []
    for _ in range(rng.randrange(3, 7)):
        verb = rng.choice(lex.does[noun])
        target = rng.choice(lex.takes[verb])
        subject = f"{rng.choice(lex.fits[noun])} {noun}"
        out.append(f"The {subject} {verb} the {rng.choice(lex.fits[target])} {target}.")
        noun = target
    return " ".join(out) + "\n"


def arithmetic(rng, _lex):
    """Sums, differences and products of small numbers."""
    out = []
    for _ in range(rng.randrange(6, 14)):
        op = rng.choice("+-*")
        a, b = (rng.randrange(2, 13) for _ in "ab") if op == "*" else sorted(
            (rng.randrange(60) for _ in "ab"), reverse=True
        )  # fmt: skip
        out.append(f"{a}{op}{b}={ {'+': a + b, '-': a - b, '*': a * b}[op] }")
    return "; ".join(out) + "\n"


def code(rng, lex):
    """Functions, whose names determine their bodies, each followed by a call."""
    out = []
    for name in rng.sample(lex.functions, rng.randrange(1, 4)):
        arg, op, constant, callee = lex.body[name]
        value = rng.randrange(1, 10)
        out.append(
            f"def {name}({arg}):\n    if {arg} > {constant}:\n        return {callee}({arg} - 1)\n"
            f"    return {arg} {op} {constant}\nprint({name}({value}))\n"
        )
    return "".join(out)


def records(rng, lex):
    """JSON lines about people: everything but the score follows from the name."""
    out = []
    for name in rng.sample(lex.names, rng.randrange(2, 5)):
        p = lex.person[name]
        out.append(
            f'{{"id": {p["id"]}, "name": "{name}", "city": "{p["city"]}", '
            f'"trade": "{p["trade"]}", "score": {rng.randrange(100)}}}\n'
        )
    return "".join(out)


def table(rng, lex):
    """Rows of a table: a name, then an arithmetic sequence."""
    out = []
    for _ in range(rng.randrange(2, 5)):
        start, step = rng.randrange(1, 20), rng.randrange(1, 10)
        cells = " | ".join(str(start + step * i) for i in range(rng.randrange(5, 9)))
        out.append(f"| {rng.choice(lex.names)} | {cells} |\n")
    return "".join(out)


DOMAINS = (prose, arithmetic, code, records, table)


def documents(seed, characters, lexicon_seed=LEXICON_SEED, domains=DOMAINS):
    """Documents of random domains, with at least this many characters in total."""
    rng, lex, total, out = random.Random(seed), Lexicon(lexicon_seed), 0, []
    while total < characters:
        out.append(rng.choice(domains)(rng, lex))
        total += len(out[-1])
    return out
