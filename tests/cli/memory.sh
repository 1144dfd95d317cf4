# Limited memory: from the smallest limit at which the libraries can be loaded to 76 MB above it, every run
# ends with status 71 or 0 and leaves nothing except a complete output.  The same for the stack.
odd=$GOLDEN/tiny-mixtral
on=(--model "$odd" --tokens "$odd/calib.npy" --seq-len 128 --max-tokens 1024)
fm-rank -q "${on[@]}" -o ranked >/dev/null
fm-train -q "${on[@]}" --method uniform --budget-step 0.2 --until 0.6 -o trained ranked >/dev/null
fm-pack -q --model "$odd" -o family.fm trained >/dev/null
limited() { # limited KB COMMAND...
    local kb=$1
    shift
    (
        ulimit -c 0
        ulimit -v "$kb"
        exec "$@"
    )
}
# try COMMAND...: run it with increasing limits, from the smallest at which libraries can be loaded.  The
# message may follow the beginning of C++'s own about another thread's exception.
try() {
    local least=60000 kb status # sanitizers need more than any limit tried here
    until limited $least "$1" --version >/dev/null 2>&1 || [ $least -gt 400000 ]; do
        least=$((least + 2000))
    done
    kb=$((least + 1000)) # loading takes a varying number of pages
    while [ $kb -lt $((least + 78000)) ] && [ $least -lt 400000 ]; do
        limited $kb "$@" >said 2>complained
        status=$?
        [ $status = 0 ] || [ $status = 71 ] || echo "$1 $2 $3: status $status at $kb kB"
        [ $status = 0 ] || grep -q "$1: " complained || echo "$1 $2 $3: no message at $kb kB"
        [ $status = 0 ] || [ ! -e out ] || echo "$1 $2 $3: an output at $kb kB"
        find . -name '.?*'
        rm -rf out .out*
        kb=$((kb + 4000))
    done
    echo "$1 tried"
}
{
    try fm-rank -q -T 2 "${on[@]}" -o out
    try fm-train -q -T 2 "${on[@]}" --method learned --steps 1 --budget-step 0.2 --until 0.4 -o out ranked
    try fm-recover -q -T 2 "${on[@]}" --steps 1 -o out trained
    try fm-pack -q -T 2 --model "$odd" -o out trained
    try fm-pack -q -T 2 --export out --layout uniform --budget 0.4 family.fm
    try fm-verify -q -T 2 family.fm
} 2>&1

# A small stack: one sentence, also where libraries need more of it than there is before main is called.
for tool in rank train recover pack verify bench; do
    for kib in 24 48 64 511; do
        (ulimit -c 0 && ulimit -s $kib && exec fm-$tool --version) >said 2>complained
        status=$?
        [ $status = 71 ] && [ "$(cat complained)" = \
            "fm-$tool: the stack is limited to $kib KiB, but needs 512; raise 'ulimit -s'" ] ||
            [ "${SAN:-}" ] || echo "fm-$tool with a stack of $kib KiB: status $status: $(cat complained)"
    done
    (ulimit -s 512 && exec fm-$tool --version) >/dev/null || echo "fm-$tool: status $? with 512 KiB"
done
