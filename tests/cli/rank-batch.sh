# fm-rank averages over whole batches: it reports how many sequences it leaves out, and refuses a
# run or plan without a whole batch.  Sizes may be written as the tools print them.
odd=$GOLDEN/odd-mixtral
try() {
    echo "\$ fm-rank $*"
    fm-rank --model "$odd" --tokens "$odd/tokens.npy" --eval-tokens "$odd/tokens.npy" --precision f32 "$@" 2>&1 | sed "s|$GOLDEN|GOLDEN|g
        s/\(mean loss [0-9]*\.[0-9][0-9]\)[0-9]*/\1/" # further digits depend on the CPU
    echo "status ${PIPESTATUS[0]}"
}
try --batch 4 --memory 100000kB -o ranked
tar -xOf ranked manifest.json | grep '"batches"'
try --batch 7 -o none
try --batch 7 -o none --dry-run
try --memory 1mB -o none
ls
