# Mistakes on the command line: one sentence that helps, status 2, nothing computed.
try() {
    echo "\$ $*"
    "$@" 2>&1
    echo "status $?"
}
try fm-rank
try fm-rank --model x
try fm-rank --modle x
try fm-rank --nonsense
try fm-rank -Z
try fm-rank --threads
try fm-rank --threads many
try fm-rank --threads 1025
try fm-rank --threads -1
try fm-rank --seed -1
try fm-rank --memory 4Gib
try fm-rank --memory 99999999999T
try fm-rank --max-tokens 18446744073709551616
try fm-rank --order sideways
try fm-rank --shuffle=yes
try fm-rank --model x --tokens y superfluous
try fm-train --steps 0
try fm-train --prior nan
try fm-recover --lora-rank 1e3
try fm-pack
try fm-pack --list --export x y
try fm-pack --export x y
try fm-pack --export x --budget 0.4 --fit 1GB y
try fm-pack --export x --budget 1.5 y
try fm-pack --export x --budget 0.4 --layout sparse y
try fm-verify --function x
try fm-verify --batches 0
try fm-bench
try fm-bench speed
try fm-bench io now
try fm-bench quality x
