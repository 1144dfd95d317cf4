#!/usr/bin/env python3
"""Make the tables of formats/text/unicode_*.h from the results of the `tokenizers` library.

    .../judge/bin/python golden/make/unicode.py

The tables reproduce tokenizers 0.23.3: its regular expressions (Oniguruma) use Unicode 16, the
characters next to an added token are classified by the Rust regex crate, its Digits are those of the
Rust standard library (Unicode 17), and its NFC is that of Unicode 9.  Python's own unicodedata has
another version and is not used.  The library's result for each code point is taken unchanged; only the
algorithm of canonical ordering and composition, and Hangul, are assumed.
"""
import os
import sys

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

ALL = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
NFC, NFD = normalizers.NFC().normalize_str, normalizers.NFD().normalize_str


def blocks(size=4096):
    for i in range(0, len(ALL), size):
        yield ALL[i:i + size]


def matching(pattern):
    """The code points that the library's Split removes."""
    split = pre_tokenizers.Split(Regex(pattern), "removed")
    found = set()
    for block in blocks():
        left = {c for piece, _ in split.pre_tokenize_str("".join(map(chr, block))) for c in piece}
        found.update(c for c in block if chr(c) not in left)
    return found


def begins(encoding):
    """The positions at which the added token was found."""
    return {begin for (begin, _), i in zip(encoding.offsets, encoding.ids) if i == 1}


def words():
    """The code points next to which a single_word token is not recognised."""
    t = Tokenizer(models.BPE({"<u>": 0}, [], unk_token="<u>"))
    t.add_tokens([AddedToken("\uE000\uE001", single_word=True, normalized=False)])
    found = set()
    for block in blocks(512):
        text = "".join(chr(c) + "\uE000\uE001 " for c in block)
        spans = begins(t.encode(text))
        found.update(c for i, c in enumerate(block) if 4 * i + 1 not in spans)
    return found


def stripped():
    """The code points that lstrip strips."""
    t = Tokenizer(models.BPE({"<u>": 0}, [], unk_token="<u>"))
    t.add_tokens([AddedToken("\uE000\uE001", lstrip=True, normalized=False)])
    found = set()
    for block in blocks(512):
        text = "".join("x" + chr(c) + "\uE000\uE001" for c in block)
        spans = begins(t.encode(text))
        found.update(c for i, c in enumerate(block) if 4 * i + 1 in spans)
    return found


def digits():
    """The code points that Digits treats as digits."""
    split, found = pre_tokenizers.Digits(individual_digits=True), set()
    for block in blocks(512):
        pieces = {begin for _, (begin, end) in
                  split.pre_tokenize_str("".join("x" + chr(c) for c in block))}
        found.update(c for i, c in enumerate(block) if 2 * i + 1 in pieces)
    return found


def orders():
    """Combining marks by class: {code point: 1, 2, ...} in the order of their classes."""
    low, high = "\u0334", "\u0345"  # a character that is reordered around these has a class
    marks = [c for c in ALL if c not in (0x334, 0x345) and
             (NFD("a" + chr(c) + low) == "a" + low + NFD(chr(c)) != "a" + NFD(chr(c)) + low or
              NFD("a" + high + chr(c)) == "a" + NFD(chr(c)) + high)]
    marks = [c for c in marks if NFD(chr(c)) == chr(c)] + [0x334, 0x345]
    before = {}
    for x in marks:
        before[x] = sum(NFD("a" + chr(y) + chr(x)) == "a" + chr(x) + chr(y) != "a" + chr(y) + chr(x)
                        for y in marks if y != x)
    rank = {n: i + 1 for i, n in enumerate(sorted(set(before.values()), reverse=True))}
    return {x: rank[n] for x, n in before.items()}


def is_hangul(c):
    return 0xAC00 <= c <= 0xD7A3


def compositions():
    """(pairs: {c: (a, b)} that compose to c; others: {c: full decomposition} that do not)."""
    pairs, others = {}, {}
    for c in ALL:
        d = NFD(chr(c))
        if d == chr(c) or is_hangul(c):
            continue
        first = NFC(d[:-1]) if len(d) > 1 else ""
        if NFC(chr(c)) == chr(c) and len(first) == 1 and NFC(first + d[-1]) == chr(c):
            pairs[c] = (ord(first), ord(d[-1]))
        else:
            others[c] = [ord(x) for x in d]
    return pairs, others


def ranges(points):
    points, out = sorted(points), []
    for p in points:
        # Surrogates cannot occur in text, so they do not split a range.
        if out and (p == out[-1][1] + 1 or (out[-1][1] == 0xD7FF and p == 0xE000)):
            out[-1][1] = p
        else:
            out.append([p, p])
    return out


def table(name, numbers, comment, kind="static const"):
    """The text of one array."""
    lines, line = [f"\n/* {comment} */\n{kind} uint32_t {name}[] = {{"], "   "
    for n in numbers:
        word = f" {n},"
        if len(line) + len(word) > 99:
            lines.append(line)
            line = "   "
        line += word
    return "\n".join(lines + [line, "};\n"])


def write(name, holds, *tables):
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    with open(os.path.join(root, "formats/text", name), "w") as f:
        f.write(f"""/*
 * Made by golden/make/unicode.py from tokenizers {tokenizers.__version__}: {holds}.
 * Included only by unicode.c.
 */
// clang-format off
""" + "".join(tables))


def differences(numbers):
    return [b - a for a, b in zip([0, *numbers], numbers)]


def flat(points):
    """For each range the gap before it and its length."""
    return differences([x for a, b in ranges(points) for x in (a, b + 1)])


def write_classes():
    cased, letters, marks = matching(r"[\p{Lu}\p{Lt}\p{Ll}]"), matching(r"\p{L}"), matching(r"\p{M}")
    numbers, spaces, signs = matching(r"\p{N}"), matching(r"\s"), matching(r"[\p{P}\p{S}]")
    assert cased < letters and not (letters & marks or letters & numbers or marks & numbers)
    assert stripped() == spaces, "two kinds of white space"
    write("unicode_classes.h", "classes of code points as in Unicode 16",
          table("cased", flat(cased), "\\p{Lu}, \\p{Lt}, \\p{Ll}: for each range the gap before it and its length"),
          table("upper", flat(matching(r"[\p{Lu}\p{Lt}]")), "those that are \\p{Lu} or \\p{Lt}"),
          table("uncased", flat(letters - cased), "all other \\p{L}"),
          table("marks", flat(marks), "\\p{M}"),
          table("numbers", flat(numbers), "\\p{N}"),
          table("spaces", flat(spaces), "\\s"),
          table("signs", flat(signs), "\\p{P} and \\p{S}"),
          table("words", flat(words() ^ (letters | marks | numbers)),
                "letters, marks and numbers that are not \\w, as tested next to single_word tokens, and others that are"),
          table("digits", flat(digits() ^ numbers),
                "the same for numbers, and digits of the Digits pre-tokenizer, as in Unicode 17"))


def write_nfc():
    order = orders()
    pairs, others = compositions()
    seconds = {b for _, b in pairs.values()} | set(range(0x1161, 0x1176)) | set(range(0x11A8, 0x11C3))
    unstable = set(order) | set(others) | seconds  # as in build()
    second = sorted({b for _, b in pairs.values()})
    by_second = [sorted((a, c) for c, (a, have) in pairs.items() if have == b) for b in second]
    assert all(NFC(chr(c)) == chr(c) for c in ALL if c not in unstable)
    write("unicode_nfc.h", "normal form C as in Unicode 9",
          table("orders", [x for r in ranges_with(order) for x in r[:3]],
                "combining marks: the gap before each range, its length, and the rank of its class; "
                "build() sums them", "static"),
          table("pairs", [x for gap, all in zip(differences(second), by_second)
                          for x in [gap, len(all)] +
                          [y for d, (_, c) in zip(differences([a for a, _ in all]), all) for y in (d, c)]],
                "for each second character of a pair the gap before it, and the number of its pairs; for each of "
                "these the gap before its first character, and the composition"),
          table("others", [x for r in ranges_with({c: len(d) for c, d in others.items()})
                           for x in r[:3] + [y for c in r[3] for y in others[c]]],
                "for each range the gap before it, its length, and n; for each of its characters the n of "
                "its decomposition, which never compose again"))
    print(f"marks {len(order)} in {len(set(order.values()))} classes, pairs {len(pairs)}, others "
          f"{len(others)}", file=sys.stderr)


def ranges_with(values):
    """For each range of one value the gap before it, its length, the value, and its characters."""
    out, end = [], 0
    for c in sorted(values):
        if out and c == end and out[-1][2] == values[c]:
            out[-1][1] += 1
            out[-1][3].append(c)
        else:
            out.append([c - end, 1, values[c], [c]])
        end = c + 1
    return out


if __name__ == "__main__":
    write_classes()
    write_nfc()
