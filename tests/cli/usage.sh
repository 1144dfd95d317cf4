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
try fm-rank "-$(printf 'n%.0s' {1..20000})" | cut -c 1-80 # options in one word
try fm-train --steps 0
try fm-train --prior nan
try fm-train --until 0
try fm-train --actions 0.5,x
try fm-rank --model x --tokens y:0
try fm-bench kernels --rows 1,70000
try fm-train --model x --tokens y --budget-step 0.0000001
try fm-recover --lora-rank 1e3
try fm-pack
try fm-pack --list --export x y
try fm-pack --export x y
try fm-pack --export x --budget 0.4 --fit 1GB y
try fm-pack --export x --budget 1.5 y
try fm-pack --export x --budget 0.4 --layout sparse y | sed 's/(use .*)/(use one of the layouts)/'
try fm-pack --export x --budget 0.4 --fit 3MB y
try fm-pack --export x --fit 1GB --layout elastic y
try fm-pack --export x --layout elastic --load-cap 0.6:0.2 y
try fm-pack --export x --layout elastic --load-cap 0.2: y
try fm-pack --export x --budget 0.4 --load-cap 0.2 y
try fm-pack --list --load-cap 0.2 y
try fm-pack --export x --budget 0.4 --for vllm y
try fm-pack --export x --budget 0.4 --layout native --shard-size 1MB y
try fm-pack --export x --budget 0.4 --pad-multiple 0 y
try fm-pack --export x --budget 0.4 --output y z
try fm-pack --export x --budget 0.4 --model y z
try fm-pack --list --budget 0.4 y
try fm-pack --list --output x y
try fm-pack --list --model x y
try fm-pack --layout ragged --model x y
try fm-verify --function x
try fm-bench
try fm-bench speed
try fm-bench qualty family.fm
try fm-bench kernels now
try fm-bench quality x

# An option without effect in the current mode is a mistake, too.
o=(--model x --tokens y)
for option in --steps\ 9 --samples-per-batch\ 2 --prior\ 0 --lr\ 0.1 --batch\ 4; do
    # shellcheck disable=SC2086 # an option and its value
    try fm-train "${o[@]}" $option
done
try fm-train "${o[@]}" --method exchange --lr 0.1
try fm-rank "${o[@]}" --tokenizer t
try fm-train "${o[@]}" --method uniform --prior 2
try fm-train "${o[@]}" --method uniform --actions 0.5,1 --budget-step 0.1
try fm-train "${o[@]}" --method saliency --batch 4
try fm-recover "${o[@]}" --strategy cross --budget 0.4
try fm-verify x --tokens y
try fm-verify --function "${o[@]}" --against y x
try fm-bench kernels --memory 1GiB
try fm-bench quality --eval-tokens x --repeat 2 y
try fm-bench kernels --dir x
try fm-bench kernels --shape x --family y
try fm-bench kernels --model mixtral-8x7b
try fm-bench kernels --tokens 1,4
try fm-bench quality --eval-tokens x --shape 1 y
try fm-bench quality --eval-tokens x --tokens y z
try fm-bench quality --eval-tokens x --batch 2 y
FM_ISA=sse2 try fm-verify x
echo "-- percentages"
try fm-pack --export x --budget 40 y
try fm-recover "${o[@]}" --budget 35%
try fm-train "${o[@]}" --until 80
