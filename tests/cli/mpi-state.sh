# Ranks that are stopped: three by a batch system's warning; then two that resume, one of which gets
# a signal; then two, one of which is killed; then one process finishes the run, with the bytes of an
# uninterrupted run.
# shellcheck source=tests/ranks.sh
. "$GOLDEN/../tests/ranks.sh"
prepare
"${rank[@]}" -o ranked >/dev/null
long=(fm-train "${common[@]}" --method learned --batch 96 --budget-step 0.2 --until 0.2)
started() { # started FILE: wait until the file shows that the ranks have begun
    while kill -0 $! && [ ! -e "$1" ]; do sleep 0.05; done 2>/dev/null
}
go_on() { # go_on RANKS
    "$MPIRUN" -n "$1" "$mpi/fm-train" "${long[@]:1}" --steps "$steps" --state state -o stopped ranked >out 2>err &
}
# ended STATUS: report how a run ended.  Open MPI's launcher may lose messages of its ranks.  MPICH 4.0's
# may also lose their status, 75, and exit with 0.  A run that really ends with 0 has written its output.
ended() {
    if [ "$1" = 75 ] || grep -q '^fm-train: interrupted .* to continue from' err; then
        echo stopped
    elif [ "$1" = 0 ] && [[ $MPIRUN = *mpich* ]] && [ ! -e stopped ]; then
        echo stopped
    else
        echo "status $1"
        cat err
    fi
}
# Enough steps for a state to be saved, which happens after a second.
for steps in 10 40 160 640; do
    go_on 3
    started state
    kill -USR1 $!
    wait $!
    status=$?
    [ ! -e stopped ] && break
    rm -f stopped state
done
echo "a warning: $(ended "$status")"
echo state* stopped*
go_on 2
started state.lock
kill -TERM "$(a_rank_of $!)"
wait $!
echo "one rank gets SIGTERM: $(ended "$?")"
echo state* stopped*
go_on 2
started state.lock
kill -KILL "$(a_rank_of $!)"
wait $! || echo "one is killed: the job ends"
flock -w 9 state.lock true # other ranks may end after their launcher
echo state stopped*
"${long[@]}" --steps "$steps" --threads 2 --state state -o stopped ranked >/dev/null
"${long[@]}" --steps "$steps" --threads 2 -o straight ranked >/dev/null
members straight stopped
