# A tar stream is not written to a terminal, except to the pseudoterminal of an MPI launcher whose own
# standard output is a file.
if ! script -qec true /dev/null >/dev/null 2>&1; then
    echo "no pseudo-terminal is available" >&2
    exit 77
fi
odd=$GOLDEN/odd-mixtral
rank="fm-rank -q --model $odd --tokens $odd/tokens.npy"
script -qec "$rank" /dev/null | tr -d '\r'
echo "terminal: status ${PIPESTATUS[0]}"
$rank >plain
OMPI_COMM_WORLD_SIZE=1 script -qec "exec $rank" /dev/null >passed && cmp plain passed && echo "passed on"
