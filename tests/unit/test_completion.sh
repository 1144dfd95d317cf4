#!/usr/bin/env bash
# Test the tools' completions in bash and zsh by typing commands and Tab at a pseudo-terminal.  Functions
# with the tools' names print their arguments.
set -u
cd "$(dirname "$0")/../.." || exit 1
bin=$PWD/${BUILD:-build}/bin
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
cd "$scratch" || exit 1
mkdir -p bash zsh there/checkpoint
touch there/calib.npy there/chess.txt 'there/my family.fm'
for tool in "$bin"/fm-*; do
    name=${tool##*/}
    [ "$name" != fm-chat2text ] || continue
    for shell in bash zsh; do
        "$tool" --completion=$shell >"$shell/_$name" || exit 1
        ! command -v $shell >/dev/null || $shell -n "$shell/_$name" || exit 1
    done
done

python3 - <<'END'
import os, pty, re, select, shutil, sys, time

CASES = [  # shells, what is typed (| is Tab), what the tool gets
    ("bash", "fm-pack --lay|ra|", "[--layout][ragged]"),
    ("zsh", "fm-pack --lay|ra|", "[--layout=ragged]"),
    ("bash zsh", "fm-pack --layout=el|", "[--layout=elastic]"),
    ("bash zsh", "fm-train --method sa|", "[--method][saliency]"),
    ("bash zsh", "fm-rank --precision b|", "[--precision][bf16]"),
    ("bash zsh", "fm-rank --tokens cal|", "[--tokens][calib.npy]"),
    ("bash zsh", "fm-rank --model che|", "[--model][checkpoint"),
    ("bash zsh", "fm-pack --budget cal|", "[--budget][cal]"),
    ("bash zsh", "fm-recover -o cal|", "[-o][calib.npy]"),
    ("bash zsh", "fm-rank --help=a|", "[--help=all]"),
    ("bash zsh", "fm-verify my|", "[my family.fm]"),
    ("bash zsh", "fm-bench ke|", "[kernels]"),
    ("bash zsh", "fm-bench kernels --ro|", "[kernels][--rows"),
    ("bash zsh", "fm-bench kernels --rx|", "[kernels][--rx]"),
    ("bash zsh", "fm-bench kernels --repe|", "[kernels][--repeat"),
    ("bash zsh", "fm-family --eval-te|cal|", "[--eval-text"),
    ("bash zsh", "fm-family chec|", "[checkpoint"),
    ("bash zsh", "fm-bench quality my|", "[quality][my family.fm]"),
]
START = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-f", "-i"],
}
SETUP = {
    "bash": "bind 'set bell-style none'; bind 'set enable-bracketed-paste off'; for f in ../bash/_*; do . $f; done",
    "zsh": "fpath=(../zsh $fpath); autoload -Uz compinit; compinit -u -D; unsetopt PROMPT_SP LIST_BEEP",
}
SAY = """for t in fm-{bench,family,pack,rank,recover,train,verify}; do eval "$t() { printf 'GOT '; printf '[%s]' \\"\\$@\\"; echo ' DONE'; }"; done"""
bad = 0


def until(fd, mark):
    text, end = "", time.monotonic() + 20
    while mark not in text and time.monotonic() < end:
        if select.select([fd], [], [], 0.2)[0]:
            try:
                text += os.read(fd, 65536).decode(errors="replace")
            except OSError:
                break
    return text


for shell, command in START.items():
    if not shutil.which(shell):
        print(f"no {shell} here: its completions are not tested")
        continue
    child, fd = pty.fork()
    if child == 0:
        os.chdir("there")
        os.environ.update(PS1="", PROMPT="", TERM="dumb", HISTFILE="/dev/null", LC_ALL="C")
        os.execvp(command[0], command)
    os.write(fd, f"{SETUP[shell]}; {SAY}; echo REA''DY\n".encode())
    until(fd, "READY")
    for shells, typed, want in CASES:
        if shell not in shells.split():
            continue
        os.write(fd, typed.replace("|", "\t").encode() + b"\n")
        said = re.findall(r"GOT (.*?) DONE", until(fd, " DONE"))
        if not said or not said[-1].startswith(want):
            print(f"{shell}: {typed!r} gives {said}, not {want}")
            bad = 1
    os.write(fd, b"exit\n")
    os.waitpid(child, 0)
sys.exit(bad)
END
