# SIGTERM in the middle of a layer that takes seconds, in the first group of batches: the tool does not
# finish it, says that there is nothing to save and writes no state, and the next run gives the same bytes.
python3 - "$(dirname "$0")/../measure" <<'PYTHON'
import sys

sys.path.insert(0, sys.argv[1])
import fullsize

config = dict(fullsize.SHAPES["mixtral"], vocab_size=256, hidden_size=1024, intermediate_size=2048,
              num_hidden_layers=1, num_attention_heads=8, num_key_value_heads=2, num_local_experts=4)
fullsize.make("model", config, False)
fullsize.make_tokens("tokens.npy", 2048, 256)
PYTHON
rank() {
    exec fm-rank -q -m model -t tokens.npy --seq-len 256 --eval-tokens tokens.npy --precision f32 --state state "$@" 2>complained
}
spent() { # PID: print the processor time of all its threads in hundredths of a second
    sed 's/.*) //' "/proc/$1/stat" | (IFS=' ' read -r -a field && echo $((field[11] + field[12])))
}
(rank -o straight >/dev/null)
(rank -o stopped >/dev/null) &
while kill -0 $! && [ "$(spent $!)" -lt 60 ]; do sleep 0.02; done
kill -TERM $!
wait $!
echo "status $?"
grep -o 'interrupted in layer 0.*' complained
ls -A
(rank -o stopped >/dev/null)
echo "again: status $?"
cmp straight stopped && echo same
