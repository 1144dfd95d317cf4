# Missing inputs, and a missing directory for the output: the messages and statuses; nothing is written.
odd=$GOLDEN/odd-mixtral
try() {
    echo "\$ $*" | sed "s|$GOLDEN|GOLDEN|g"
    "$@" 2>&1 | sed "s|$GOLDEN|GOLDEN|g"
    echo "status ${PIPESTATUS[0]}"
}
try fm-rank --model nowhere --tokens "$odd/tokens.npy" -o out
try fm-rank --model "$odd" --tokens nowhere.npy -o out
try fm-train --model "$odd" --tokens "$odd/tokens.npy" -o out nowhere
try fm-recover --model "$odd" --tokens "$odd/tokens.npy" -o out nowhere
try fm-pack --model "$odd" -o out nowhere
try fm-pack --list nowhere
try fm-pack --export out --budget 0 nowhere
try fm-verify nowhere
try fm-verify nowhere --against "$odd/tokens.npy"
try fm-verify --dry-run nowhere --against "$odd/tokens.npy"
try fm-verify --record nowhere
try fm-verify "$odd/tokens.npy" --against nowhere
try fm-rank --model "$odd" --tokens "$odd/tokens.npy" -o no/such/directory/out
ls -A
