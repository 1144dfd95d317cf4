"""A second grammar, whose words, facts and syntax differ from grammar.py's.

Choices made on models of one grammar are confirmed on models of the other.  The lexicon is that of
grammar.py with another seed, so no word has the same meaning, and none of the four domains has the
form of one of grammar.py's five.
"""

import grammar

LEXICON_SEED = 19


def letters(rng, lex):
    """A letter: the two names determine the cities, the trade and the number."""
    to, by = rng.sample(lex.names, 2)
    noun = rng.choice(lex.nouns)
    return (
        f"Dear {to},\nhow is {lex.person[to]['city']}? Here in {lex.person[by]['city']} a "
        f"{lex.person[by]['trade']} sees {rng.choice(lex.fits[noun])} {noun} all day. My number "
        f"is still {lex.person[by]['id']}.\nYours, {by}\n"
    )


def stacks(rng, _lex):
    """A program for a stack machine, and the stack after each line."""
    stack, out = [], []
    for _ in range(rng.randrange(5, 10)):
        if len(stack) < 2 or rng.random() < 0.5:
            value = rng.randrange(1, 20)
            stack.append(value)
            out.append(f"push {value}")
        else:
            a, b = stack.pop(), stack.pop()
            word = rng.choice(("add", "max", "min"))
            stack.append({"add": a + b, "max": max(a, b), "min": min(a, b)}[word])
            out.append(word)
        out[-1] += " [" + " ".join(map(str, stack)) + "]"
    return "\n".join(out) + "\n"


def markup(rng, lex):
    """Nested elements; the tag determines the attributes."""
    out, names = [], rng.sample(lex.nouns, rng.randrange(2, 5))
    for depth, name in enumerate(names):
        out.append(f'{" " * depth}<{name} is="{lex.fits[name][0]}" can="{lex.does[name][0]}">')
    for depth in range(len(names) - 1, -1, -1):
        out.append(f'{" " * depth}</{names[depth]}>')
    return "\n".join(out) + "\n"


def logs(rng, lex):
    """Lines of a log with increasing times; each service always reports the same error."""
    out, at = [], rng.randrange(36000)
    for _ in range(rng.randrange(3, 7)):
        at += rng.randrange(1, 90)
        name = rng.choice(lex.functions)
        arg, op, constant, callee = lex.body[name]
        clock = f"{at // 3600:02}:{at // 60 % 60:02}:{at % 60:02}"
        out.append(f"{clock} {name}: error {constant} ({arg}{op}) from {callee}")
    return "\n".join(out) + "\n"


DOMAINS = (letters, stacks, markup, logs)


def documents(seed, characters):
    return grammar.documents(seed, characters, LEXICON_SEED, DOMAINS)
