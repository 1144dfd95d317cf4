#!/usr/bin/env bash
# Check the suite's results and files with independent programs: tar, xxhsum and zstd, and
# transformers, safetensors and tokenizers in a virtual environment with pinned versions.  The
# environment is made once, in the user's cache directory; it takes several GB and minutes to
# install.
#
#   BUILD=build tests/judge/judge.sh            run tests/judge/*judge.py with the tools in $BUILD/bin
#   tests/judge/judge.sh --golden [COMMAND...]  run golden/make/make.py: make all golden files again, or those named
#   tests/judge/judge.sh --venv                 only make the environment
#   BUILD=build tests/judge/judge.sh --publish  signatures only, in a small environment
#
# FM_JUDGE_STRINGS: how many texts tests/judge/textjudge.py encodes with each tokenizer (100,000).
# The page of fm-bench report is tested in Chromium, which must be installed (apt-get install chromium);
# FM_JUDGE_SHOTS is the directory for its screenshots.
# FM_JUDGE_FAMILY: a bundle to judge instead of a new one; it must have been made from
# golden/tiny-mixtral with its calib.npy, --seq-len 128 and --eval-tokens heldout.npy.
set -eu
cd "$(dirname "$0")/../.."
BUILD=${BUILD:-build}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/fm-suite
venv=$cache/judge
pins="torch==2.15.0 transformers==5.23.0 safetensors==0.8.0 tokenizers==0.23.3
accelerate==1.15.0 numpy==2.4.6 compressed-tensors==0.20.0"
publish_pins="model-signing==1.1.1 pyOpenSSL==26.4.0"
lm_pins="lm-eval==0.4.13 datasets==5.2.0"

pins_hold() { # pins_hold VENV PIN...: the environment exists and has exactly these versions
    "$1/bin/python" - "${@:2}" <<'PYTHON' 2>/dev/null
import sys
from importlib.metadata import version
wrong = [pin for pin in sys.argv[1:] if version(pin.split("==")[0]) != pin.split("==")[1]]
sys.exit(bool(wrong))
PYTHON
}

need() { # need VENV PIN...: make the environment unless it exists with these versions
    ! pins_hold "$@" || return 0
    echo "judge.sh: making $1" >&2
    mkdir -p "$(dirname "$1")"
    python3 -m venv "$1" || {
        echo "judge.sh: python3 -m venv failed; on Debian: apt-get install python3-venv" >&2
        exit 1
    }
    "$1/bin/pip" install --quiet --disable-pip-version-check "${@:2}"
}

judge_publish() { # check signatures with an independent program
    # shellcheck disable=SC2086 # a list of words
    need "$cache/publish" $publish_pins
    "$cache/publish/bin/python" -u tests/judge/signjudge.py
}
if [ "${1:-}" = --publish ]; then
    export PATH=$PWD/$BUILD/bin:$PATH PYTHONDONTWRITEBYTECODE=1 LC_ALL=C.UTF-8
    judge_publish
    exit
fi

# shellcheck disable=SC2086
need "$venv" $pins
[ "${1:-}" != --venv ] || exit 0

# The judges download nothing, and their results do not depend on the caller's environment.
export HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error PYTHONDONTWRITEBYTECODE=1 LC_ALL=C.UTF-8
export HF_HUB_DISABLE_PROGRESS_BARS=1 PYTHONWARNINGS=ignore

if [ "${1:-}" = --golden ]; then
    shift
    exec "$venv/bin/python" -u golden/make/make.py "$@"
fi
make -s BUILD="$BUILD" "$BUILD/tests/judge/logprobs" "$BUILD/tests/judge/encode" \
    "$BUILD/tests/judge/routergrad"
export PATH=$PWD/$BUILD/bin:$PWD/$BUILD/tests/judge:$PATH PYTHONPATH=$PWD/golden/make
status=0
"$venv/bin/python" -u tests/judge/textjudge.py "${FM_JUDGE_STRINGS:-100000}" || status=1
"$venv/bin/python" -u tests/judge/wrapperjudge.py || status=1
"$venv/bin/python" -u tests/judge/familyjudge.py || status=1
"$venv/bin/python" -u tests/judge/routerjudge.py || status=1
"$venv/bin/python" -u tests/judge/codesjudge.py || status=1
"$venv/bin/python" -u tests/judge/roundjudge.py || status=1
"$venv/bin/python" -u tests/judge/measurejudge.py || status=1
# shellcheck disable=SC2086
need "$cache/lm-eval" $pins $lm_pins
"$cache/lm-eval/bin/python" -u tests/judge/lmjudge.py || status=1
"$venv/bin/python" -u tests/judge/aheadjudge.py || status=1
"$venv/bin/python" -u tests/judge/clipjudge.py || status=1
"$venv/bin/python" -u tests/judge/runtimejudge.py || status=1
"$venv/bin/python" -u tests/judge/pagejudge.py || status=1
judge_publish || status=1
"$venv/bin/python" -u tests/judge/judge.py || status=1
exit $status
