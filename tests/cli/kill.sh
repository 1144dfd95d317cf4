# Kill a tool with SIGKILL twice, each time after it saved a state, and run the same command again.  The
# output must have the bytes of an uninterrupted run.
odd=$GOLDEN/odd-mixtral
run() { # run TOOL OPTION...: replace the shell by the tool
    tool=$1
    shift
    exec "$tool" -q --model "$odd" --tokens "$odd/tokens.npy" --threads 1 "$@" >/dev/null 2>&1
}
killed() { # killed TOOL OPTION...: kill it twice, each time after it saved a state, then let it finish
    for _ in 1 2; do
        rm -f before
        [ -e state ] && ln state before
        (run "$@" --state state -o killed) &
        while kill -0 $! 2>/dev/null && { [ ! -e state ] || [ state -ef before ]; }; do
            sleep 0.02
        done
        kill -9 $! 2>/dev/null
        wait $! 2>/dev/null
        [ -e killed ] && return 1 # it ended before it was killed
    done
    [ -e state ] && echo "$1: killed with a state"
    (run "$@" --state state -o killed)
    echo "$1: status $?"
    [ -e state ] && echo "$1: the state was not removed"
    return 0
}
# both TOOL OPTION...: compare a killed and an uninterrupted run.  States are saved every second, so a run
# of about four seconds allows two kills; if it does not, the number of steps is doubled.
both() {
    local tool=$1 began=${EPOCHREALTIME/./} steps
    shift
    (run "$tool" --steps 100 -o trial "$@")
    rm trial
    steps=$((100 * 4000000 / (${EPOCHREALTIME/./} - began) + 100))
    until killed "$tool" --steps $steps "$@"; do
        rm -f killed state
        steps=$((steps * 2))
    done
    (run "$tool" --steps $steps -o straight "$@")
    cmp straight killed && echo "$tool: same"
    rm -f before killed
}
(run fm-rank -o ranked)
both fm-train --method learned --until 0.3 ranked
mv straight family
both fm-recover --budget 0 family
ls
