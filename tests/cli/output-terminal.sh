# A tar stream is not written to a terminal.
if ! script -qec true /dev/null >/dev/null 2>&1; then
    echo "no pseudo-terminal can be had here" >&2
    exit 77
fi
odd=$GOLDEN/odd-mixtral
script -qec "fm-rank -q --model $odd --tokens $odd/tokens.npy" /dev/null | tr -d '\r'
echo "terminal: status ${PIPESTATUS[0]}"
