# kill -9 twice at whatever moment, the same command again: the bytes of a straight run.
odd=$GOLDEN/odd-mixtral
run() { # run TOOL OPTION...: becomes the tool
    tool=$1
    shift
    exec "$tool" -q --model "$odd" --tokens "$odd/tokens.npy" --threads 1 "$@" >/dev/null 2>&1
}
# steps_for TOOL OPTION...: how many steps take this machine some four seconds; states are saved
# every second, so that leaves room for two kills
steps_for() {
    local began=${EPOCHREALTIME/./}
    (run "$@" --steps 100 -o trial)
    rm trial
    echo $((100 * 4000000 / (${EPOCHREALTIME/./} - began) + 100))
}
killed() { # killed TOOL OPTION...: two kills, each after a state has been saved, then to the end
    for _ in 1 2; do
        rm -f before
        [ -e state ] && ln state before
        (run "$@" --state state) &
        while kill -0 $! 2>/dev/null && { [ ! -e state ] || [ state -ef before ]; }; do
            sleep 0.02
        done
        kill -9 $! 2>/dev/null
        wait $! 2>/dev/null
    done
    rm -f before
    [ -e state ] && echo "$1: killed with a state"
    (run "$@" --state state)
    echo "$1: status $?"
    [ -e state ] && echo "$1: the state is left behind"
}
(run fm-rank -o ranked)
steps=$(steps_for fm-train --method learned --until 0.3 ranked)
(run fm-train --method learned --steps "$steps" --until 0.3 -o straight ranked)
killed fm-train --method learned --steps "$steps" --until 0.3 -o killed ranked
cmp straight killed && echo "fm-train: same"
steps=$(steps_for fm-recover --budget 0 straight)
(run fm-recover --steps "$steps" --budget 0 -o straight2 straight)
killed fm-recover --steps "$steps" --budget 0 -o killed2 straight
cmp straight2 killed2 && echo "fm-recover: same"
ls
