#!/usr/bin/env python3
"""Find the commands in literal blocks of README.md and the man pages, and the tests that run them.

    pages.py                   list every command: PAGE:LINE: test: command
    pages.py take PAGE TEST    print the blocks of PAGE that TEST runs
    pages.py check             exit 1 if a block or a command violates a rule below

A block is `.Bd -literal` to `.Ed`, a `.Dl` line, or a fence of README.md.  Each carries one mark:

    .\\" run: TEST [NAME]       the line above; <!-- run: TEST --> in README.md.  tests/TEST.sh (or the
                               file tests/TEST) takes the block from the page and runs it; NAME tells
                               several blocks of one test apart.
    .\\" run: .ci/run           .ci/run has the same commands
    .\\" text                   not a command: output, a table, a formula
    (not run: REASON)          in the paragraph above or in the first paragraph of the section, where
                               readers see it; "# not run" at the end of a command marks that command

Blocks and commands named in the text are checked further: the Makefile must have the targets and variables
of a `make` command, and .ci/run must have the command unless it is marked; our tools must have the options,
also those that a man page names outside commands, and scripts must exist.
"""
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOT_RUN = re.compile(r"\(not run: ([^)]+)\)")
MARK = re.compile(r'(?:\.\\" |<!-- )(run: .*?|text)(?: -->)?$')
# What .ci/run may add to a command of a page, and the goals that `make check` includes.
OWN = re.compile(r"(DESTDIR|PREFIX|BUILD|CUDA|MAINTAINER)=|-j")
BY_CHECK = {"lint": "check", "demo": "check", "deps": "check"}
TOOLS = [f"fm-{name}" for name in ("bench", "family", "pack", "rank", "recover", "train", "verify")]
OTHERS = {"--allow-code", "--completion", "--help", "--version"}  # fm-chat2text's, and those not in each list


class Block:
    def __init__(self, page, line, mark, covering):
        self.page, self.line, self.mark, self.covering, self.text = page, line, mark, covering, []

    def commands(self):
        """(line number, command, whether it is run): lines joined as the shell joins them."""
        first, joined, end = 0, "", None
        for number, line in enumerate(self.text, self.line + 1):
            first = first if joined else number
            joined += line + "\n"
            if not end and (heredoc := re.search(r"<<(\w+)", line)):
                end = heredoc[1]
            code = re.sub(r"\s# .*", "", line).rstrip()
            if line == end:
                end = None
            elif end or code.endswith(("\\", "|", "&&")) or joined.count('"') % 2:
                continue
            yield first, joined, not re.search(r"# not run\b", joined)
            joined = ""
        if joined:
            yield first, joined, True

    def taken(self):
        """The part of a block that a test runs."""
        return "".join(command for _, command, is_run in self.commands() if is_run)


class Page:
    """Blocks, and commands named in the text as (line number, command, the text that covers it)."""

    def __init__(self, path):
        self.name = str(path.relative_to(ROOT))
        self.blocks, self.named = [], []
        self.mark, self.above, self.lists, self.sections = None, [], [], []
        lines = path.read_text().split("\n")
        (self.readme if path.suffix == ".md" else self.mdoc)(lines)

    def covering(self):
        """The places where a mark for readers may be; the lists grow while their paragraphs are read."""
        return [self.above, *self.lists, *self.sections]

    def open(self, number):
        self.blocks.append(Block(self.name, number, self.mark, self.covering()))
        self.mark = None
        return self.blocks[-1]

    def heading(self, level):
        self.above = []
        self.sections = self.sections[:level] + [self.above]

    def mdoc(self, lines):
        block = None
        for number, line in enumerate(lines, 1):
            macro, _, rest = line.partition(" ")
            if macro == ".Ed":
                block, self.above = None, []
            elif found := MARK.match(line):
                self.mark = found[1]
            elif line.startswith('.\\"'):
                pass
            elif block:
                block.text.append(plain(line))
            elif line.startswith(".Bd -literal"):
                block = self.open(number)
            elif macro == ".Dl":
                mark = self.mark
                self.open(number - 1).text.append(plain(rest))
                self.mark = mark if lines[number].startswith(".Dl ") else None
            elif macro in (".Sh", ".Ss"):
                self.heading((".Sh", ".Ss").index(macro))
            elif macro == ".Bl":
                self.lists.append(self.above)
            elif macro == ".El":
                self.lists.pop()
                self.above = []
            else:
                self.mark = None
                if macro in (".Pp", ".It"):
                    self.above = []
                self.above.append(line)
                self.name_commands(number, line.split())

    def name_commands(self, number, words):
        """The arguments of .Ic, .Li and .Ql, up to the next macro or punctuation."""
        for at, word in enumerate(words):
            if words[0].startswith(".") and word.lstrip(".") in ("Ic", "Li", "Ql"):
                held = []
                for word in words[at + 1:]:
                    if re.fullmatch(r"[A-Z][a-z]|[.,:;()]", word):
                        break
                    held.append(word)
                self.named.append((number, plain(" ".join(held)), self.covering()))

    def readme(self, lines):
        block, blank = None, False
        for number, line in enumerate(lines, 1):
            if line.startswith("```"):
                block = None if block else self.open(number)
                self.above = self.above if block else []
            elif block:
                block.text.append(line)
            elif found := MARK.match(line):
                self.mark = found[1]
            elif line.startswith("#"):
                self.heading(line.count("#") - 1)
            elif line:
                self.mark = None
                if blank:
                    self.above = []
                self.above.append(line)
                for command in re.findall(r"`([^`]+)`", line):
                    self.named.append((number, command, self.covering()))
            blank = not line


def plain(text):
    return text.removeprefix("\\&").replace("\\e", "\\")


def reason(covering):
    """The reason why something is not run, if its text gives one."""
    for text in covering:
        if found := NOT_RUN.search(" ".join(text)):
            return found[1]
    return None


def pages():
    return [Page(path) for path in [ROOT / "README.md", *sorted((ROOT / "man").glob("*.[1-7]"))]]


# ---- the checks ----


def simple_commands(text):
    """The commands of a line of shell, between pipes and other separators, as lists of words."""
    lexer = shlex.shlex(text.replace("\\\n", " "), posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, "#"
    words, commands = [], []
    try:
        for word in [*lexer, ";"]:
            if not set(word) <= set("|&;()<>"):
                words.append(word)
            elif words:
                commands.append(words)
                words = []
    except ValueError:  # an unbalanced quote: not shell
        return []
    return commands


def make_command(words):
    """(goals, variables and options) if the words call make, else None."""
    if "make" not in words:
        return None
    at = words.index("make")
    rest = words[at + 1:] + [word for word in words[:at] if "=" in word]
    goals = [word for word in rest if "=" not in word and word[0] != "-"]
    return sorted(goals), sorted(set(rest) - set(goals))


def covers(goal, settings, there, others):
    """True if a make command of .ci/run (goals `there`, settings `others`) includes `goal` with `settings`.

    A value with $ in .ci/run stands for several values.
    """
    values = dict(other.partition("=")[::2] for other in others)
    asked = dict(setting.partition("=")[::2] for setting in settings)
    return (goal in (there or [None]) or BY_CHECK.get(goal) in there) and all(
        name in values and (value == values[name] or "$" in values[name]) for name, value in asked.items()
    ) and all(other.partition("=")[0] in asked or OWN.match(other) or "$" in other for other in others)


class Check:
    def __init__(self):
        self.bad, self.known, self.options, self.tried = 0, set(), {}, {}
        self.sources = "".join(path.read_text() for path in [
            ROOT / "Makefile", *ROOT.glob("cmd/package/*.mk"), *ROOT.glob("tests/*.sh")])
        self.ci = (ROOT / ".ci/run").read_text()
        self.ci_makes = [found for line in self.ci.split("\n") for words in simple_commands(line)
                         if (found := make_command(words))]

    def fail(self, page, line, text):
        print(f"{page}:{line}: {text}")
        self.bad = 1

    def test(self, block):
        """Check that the test that a mark names exists and takes text from this page."""
        name, _, more = block.mark.removeprefix("run: ").partition(" ")
        source = next((p for p in (ROOT / f"tests/{name}.sh", ROOT / "tests" / name) if p.is_file()), None)
        text = source.read_text() if source else ""
        page = Path(block.page)
        if not source:
            self.fail(block.page, block.line, f"no test {name}")
        elif not ("pages." in text and (page.name in text or "-" in page.stem and page.stem in text) and more in text):
            self.fail(block.page, block.line, f"{source.relative_to(ROOT)} takes no block '{more}' from {page.name}")

    def options_of(self, name):
        if name not in self.options:
            tool = ROOT / os.environ.get("BUILD", "build") / "bin" / name
            if not tool.exists():
                sys.exit(f"pages.py: no {tool}; run make, or set BUILD")
            said = subprocess.run([tool, "--help=all"], capture_output=True, text=True, check=True).stdout
            self.options[name] = set(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", said)) | OTHERS
        return self.options[name]

    def macros(self, page):
        """Check that a tool has each long option that a man page names by the macro Fl (other programs': Ql)."""
        ours = set().union(*map(self.options_of, TOOLS))
        for number, line in enumerate((ROOT / page).read_text().split("\n"), 1):
            if not line.startswith(".") or " tests/" in line:  # options of a script
                continue
            for flags in re.findall(r"\bFl ((?:-[a-z][\w-]*(?: , )?)+)", line):
                for option in flags.split(" , "):
                    if option and f"-{option}" not in ours:
                        self.fail(page, number, f"no tool has an option -{option}")

    def tools(self, page, line, words):
        """Check that tools and scripts exist and have the options of a command."""
        for at, word in enumerate(words):
            if word in TOOLS:
                options = self.options_of(word)
                for option in words[at + 1:]:
                    option = option.split("=")[0]
                    if re.match("--?[a-zA-Z]", option) and option not in options:
                        self.fail(page, line, f"{word} has no option {option}")
            elif re.match(r"tests/.*\.(sh|py)$", word):
                script = ROOT / word
                text = script.read_text() if script.is_file() else self.fail(page, line, f"no {word}") or word
                for option in words[at + 1:]:
                    if option.startswith("--") and option not in text:
                        self.fail(page, line, f"{word} has no option {option}")

    def make(self, page, line, words, marked, named=False):
        """Check that the Makefile has the goals and variables, and that .ci/run has the command or it is `marked`."""
        goals, settings = make_command(words)
        for setting in settings:
            name = setting.split("=")[0]
            if "=" in setting and not re.search(rf"\b{name}\b", self.sources):
                self.fail(page, line, f"nothing reads the variable {name}")
        command = " ".join(["make", *goals, *settings])
        if command not in self.tried:
            # make -n still runs lines with $(MAKE), so use a shell that does nothing.
            done = subprocess.run(["make", "-n", "SHELL=true", *goals, *settings],
                                  cwd=ROOT, capture_output=True, text=True)
            self.tried[command] = done.stderr if done.returncode else ""
        if self.tried[command]:
            self.fail(page, line, f"{command}: {self.tried[command].splitlines()[-1]}")
        if marked or all(any(covers(goal, settings, *there) for there in self.ci_makes) for goal in goals or [None]):
            self.known.add(tuple(goals))
        elif not named or tuple(goals) not in self.known:
            self.fail(page, line, f".ci/run has no '{command}'")

    def block(self, block):
        run = block.mark and block.mark.startswith("run: ") and block.mark != "run: .ci/run"
        why = None if block.mark else reason(block.covering)
        if block.mark == "text":
            for number, line in enumerate(block.text, block.line + 1):
                if re.match(r"\s*(\$ |make |mpirun |pip |fm-\w+ .*-)", line):
                    self.fail(block.page, number, f"a command in a block that is marked as text: {line}")
            return
        if run:
            self.test(block)
        elif not block.mark and not why and any(is_run for _, _, is_run in block.commands()):
            self.fail(block.page, block.line, "no test runs this block and no mark says why")
        for number, command, is_run in block.commands():
            for words in simple_commands(command):
                self.tools(block.page, number, words)
                if make_command(words) and not run:
                    self.make(block.page, number, words, why or not is_run)
                elif block.mark == "run: .ci/run" and is_run:
                    self.in_ci(block.page, number, words)

    def in_ci(self, page, line, words):
        if words[:2] == ["apt-get", "install"]:
            for package in words[2:]:
                if package[0] != "-" and package not in (ROOT / "tests/deps.sh").read_text():
                    self.fail(page, line, f"tests/deps.sh installs no {package}")
        elif words and " ".join(words) not in self.ci:
            self.fail(page, line, f".ci/run has no '{' '.join(words)}'")

    def named(self, page, number, command, why):
        for words in simple_commands(command):
            self.tools(page, number, words)
            if make_command(words):
                self.make(page, number, words, why, named=True)


def main():
    if sys.argv[1:2] == ["take"]:
        page, test = sys.argv[2:]
        blocks = [block for each in pages() if Path(each.name).name == page for block in each.blocks]
        taken = [block for block in blocks if block.mark == f"run: {test}"]
        for block in taken:
            sys.stdout.write(block.taken())
        sys.exit(not taken)
    if sys.argv[1:2] == ["check"]:
        check = Check()
        for page in pages():
            for block in page.blocks:
                check.block(block)
            check.macros(page.name)
        named = [(page.name, number, command, reason(covering))
                 for page in pages() for number, command, covering in page.named]
        for command in sorted(named, key=lambda command: command[3] is None):  # the marked first
            check.named(*command)
        sys.exit(check.bad)
    for page in pages():
        for block in page.blocks:
            mark = block.mark or f"not run: {reason(block.covering)}"
            program = re.match(r"#include|#!|struct |import |name:|[A-Z]+ = ", block.text[0])
            for number, command, is_run in list(block.commands())[:1 if program else None]:
                more = f" ... ({len(block.text)} lines)" if program else ""
                if command.strip() and mark != "text":
                    print(f"{block.page}:{number}: {mark if is_run else 'not run'}: {command.splitlines()[0]}{more}")


if __name__ == "__main__":
    main()
