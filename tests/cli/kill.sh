# kill -9 three times at whatever moment, the same command again: the bytes of a straight run.
odd=$GOLDEN/odd-mixtral
run() { # run TOOL OPTION...: becomes the tool
    tool=$1
    shift
    exec "$tool" -q --model "$odd" --tokens "$odd/tokens.npy" --threads 1 "$@" >/dev/null 2>&1
}
killed() { # killed TOOL OPTION...: three kills, each after a state has been saved, then to the end
    for _ in 1 2 3; do
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
(run fm-train --steps 300 --until 0.3 -o straight ranked)
killed fm-train --steps 300 --until 0.3 -o killed ranked
cmp straight killed && echo "fm-train: same"
(run fm-recover --budget 0 --steps 300 -o straight2 straight)
killed fm-recover --budget 0 --steps 300 -o killed2 straight
cmp straight2 killed2 && echo "fm-recover: same"
ls
