# Run the commands of README.md, fm-guide(7) and fm(7).  A small model stands in for
# Qwen3-30B-A3B in the Hugging Face cache, and odd-mixtral for DIR.  Adapters take two steps.
# shellcheck source=tests/pages.bash
. "$GOLDEN/../tests/pages.bash"
export HF_HUB_CACHE=$PWD/hub
cached=hub/models--Qwen--Qwen3-30B-A3B
python3 - "$GOLDEN/../tests/measure" $cached/snapshots/0123 <<'PYTHON'
import sys
sys.path.insert(0, sys.argv[1])
import fullsize
config = {**fullsize.SHAPES["qwen3-30b"], "vocab_size": 384, "hidden_size": 8, "num_hidden_layers": 1, "num_experts": 4,
          "num_experts_per_tok": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4}
fullsize.make(sys.argv[2], config, False)
PYTHON
cp "$GOLDEN/tiny-mixtral/tokenizer.json" $cached/snapshots/0123
mkdir $cached/refs bin && printf 0123 >$cached/refs/main
for tool in fm-recover fm-family; do
    printf '#!/bin/sh\nexec %s --steps 2 "$@"\n' "$(command -v $tool)" >bin/$tool
done
chmod +x bin/* && export PATH=$PWD/bin:$PATH

try() { # try PAGE [NAME]: print the files that it makes, and its messages except warnings and progress
    mkdir "$1${2:+-$2}" && cd "$1${2:+-$2}" || exit 99
    for name in mine chat code languages heldout; do head -n 12 "$GOLDEN/text/rows.jsonl" >$name.jsonl; done
    ln -s "$GOLDEN/odd-mixtral" DIR && cp DIR/tokens.npy calib.npy
    examples "$@"
    grep '^fm-' complained | grep -v ': [a-z ]*: [0-9.]* of [0-9]*\|warning\|the nearest member' |
        sed 's/will take .*;/will take N;/'
    ls -I '*.jsonl' -I DIR -I calib.npy -I example.sh -I said -I complained
    cd .. || exit 99
}
try README.md family
try fm.7
try fm-guide.7
grep -o '^[a-z]*: [0-9]* items' fm-guide.7/said
(cd fm-guide.7/repo && find . -type f | sort && [ "$(grep -c '^| 0' README.md)" -gt 10 ] && echo "a curve" && sed -n '1,/^#/p' README.md)
touch fm-guide.7/repo/budgets/20/more
for dir in repo repo/budgets/20 repo/budgets/40; do
    fm-verify -q --trusted fm-guide.7/key.pub fm-guide.7/$dir >/dev/null 2>&1
    echo "$dir: status $?"
done
take fm.7 completion >example.sh
bash -ec '. ./example.sh; complete -p fm-pack'
