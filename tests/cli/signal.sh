# SIGTERM: with --state the run is saved (75) and goes on later to the same bytes; without, the
# process ends by the signal and leaves nothing behind.
odd=$GOLDEN/odd-mixtral
train() {
    exec fm-train -q --model "$odd" --tokens "$odd/tokens.npy" --threads 1 --steps 300 --until 0.3 \
        "$@" ranked >/dev/null 2>&1
}
stop() { # stop PID: once it catches the signal and has had a moment to work
    until caught=$(sed -n 's/^SigCgt:[[:space:]]*/0x/p' "/proc/$1/status") &&
        [ $((caught & 0x4000)) != 0 ]; do
        sleep 0.02
    done
    sleep 0.2
    kill -TERM "$1"
    wait "$1" 2>/dev/null
}
fm-rank -q --model "$odd" --tokens "$odd/tokens.npy" -o ranked >/dev/null 2>&1
(train -o straight)
(train -o stopped --state state) &
stop $!
echo "with a state: status $?"
ls -A
(train -o stopped --state state)
echo "again: status $?"
cmp straight stopped && echo same
(train -o gone) &
stop $!
echo "without: status $?"
(train --seed 1 --state state -o other) &
stop $!
echo "another seed: status $?"
fm-train -q --model "$odd" --tokens "$odd/tokens.npy" --steps 300 --until 0.3 --state state \
    -o refused ranked
echo "a state of other options: status $?"
rm state
ls -A
