# SIGTERM: with --state the run is saved (75) and resumed later to the same bytes; without it, the
# process ends by the signal and leaves no files.
odd=$GOLDEN/odd-mixtral
train() {
    exec fm-train -q --model "$odd" --tokens "$odd/tokens.npy" --precision f32 --threads 1 \
        --method learned --steps 300 --until 0.3 \
        "$@" ranked >/dev/null 2>"${said:-/dev/null}"
}
spent() { # PID: hundredths of a second of all its threads
    sed 's/.*) //' "/proc/$1/stat" | (IFS=' ' read -r -a field && echo $((field[11] + field[12])))
}
# stop PID [SPENT]: send SIGTERM when the process catches it and has used SPENT hundredths of a second of
# processor time or, without SPENT, has had a moment to begin to wait.
stop() {
    until caught=$(sed -n 's/^SigCgt:[[:space:]]*/0x/p' "/proc/$1/status") &&
        [ $((caught & 0x4000)) != 0 ]; do
        sleep 0.02
    done
    [ "${2-}" ] || sleep 0.2
    while kill -0 "$1" 2>/dev/null && [ "$(spent "$1")" -lt "${2:-0}" ]; do sleep 0.01; done
    kill -TERM "$1"
    wait "$1" 2>/dev/null
}
fm-rank -q --model "$odd" --tokens "$odd/tokens.npy" --precision f32 -o ranked >/dev/null 2>&1
(train -o straight)
(said=complained train -o stopped --state state) &
stop $! 25
echo "with a state: status $?"
grep -o 'repeat the command.*' complained
rm complained
ls -A
(train -o stopped --state state)
echo "again: status $?"
cmp straight stopped && echo same
(said=complained train -o gone) &
stop $! 25
echo "without: status $?"
sed 's/signal; .* of/signal; TIME of/' complained && rm complained
(train --seed 1 --state state -o other) &
stop $! 25
echo "another seed: status $?"
fm-train -q --model "$odd" --tokens "$odd/tokens.npy" --precision f32 --method learned --steps 300 --until 0.3 --state state \
    -o refused ranked
echo "a state of other options: status $?"
rm state
ls -A
# A second signal before the first has been handled ends the tool at once and removes a half-written
# file.  The tool is frozen while its temporary file exists; if that moment is missed, it is run again.
# If it is frozen when the output already has its name, the signal ends it and the whole output remains.
mv straight trained && rm stopped
fm-pack -q -T 1 --model "$odd" -o whole trained >/dev/null 2>&1
state() { sed -n 's/^State:[[:space:]]*\(.\).*/\1/p' "/proc/$1/status" 2>/dev/null; }
freeze() { # stop a process, $!, while its temporary file exists
    local frozen=
    until [ "$frozen" ]; do
        rm -f out
        fm-pack -q -T 1 --model "$odd" -o out trained >/dev/null 2>&1 &
        while [ ! "$frozen" ] && kill -0 $! 2>/dev/null; do
            compgen -G '.out.*' >/dev/null || continue
            kill -STOP $! 2>/dev/null
            until [[ $(state $!) != [RSD] ]]; do :; done
            frozen=$(compgen -G '.out.*') || kill -CONT $! 2>/dev/null
        done
    done
}
status=0
while [ $status = 0 ]; do
    freeze
    kill -INT $!
    kill -TERM $!
    kill -CONT $!
    wait $! 2>/dev/null
    status=$?
    [ ! -e out ] || cmp out whole || status=damaged
done
rm -f out whole
case $status in
130 | 143) echo "ended by a signal" ;;
*) echo "status $status" ;;
esac
ls -A
# A run that is stopped before there is anything to save does not report a state.
mkfifo pipe && exec 3<>pipe
fm-rank -q --model "$GOLDEN/tiny-mixtral" --text - --state none -o never <pipe >/dev/null 2>complained &
stop $!
echo "before the work: status $?"
cat complained
exec 3>&-
rm pipe complained
ls -A
