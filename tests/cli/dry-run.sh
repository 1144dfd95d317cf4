# --dry-run checks and plans; nothing is written.
# shellcheck source=tests/cli/least.bash
. "$(dirname "$0")/least.bash"
odd=$GOLDEN/odd-mixtral
fm-rank -q --model "$odd" --tokens "$odd/tokens.npy" --precision f32 -o ranked >/dev/null 2>&1
fm-train -q --model "$odd" --tokens "$odd/tokens.npy" --precision f32 --method saliency --budget-step 0.2 \
    -o trained ranked >/dev/null
fm-pack -q --model "$odd" -o family.fm trained >/dev/null
for tool in fm-rank fm-train fm-recover; do
    $tool -n --model "$odd" --tokens "$odd/tokens.npy" -o out </dev/null | awk '$1 != "halved" && /^[a-z]/ { print $1 }' # the others depend on the CPU
    echo "$tool: status ${PIPESTATUS[0]}"
done
echo "-- the planned size of the output is never below the real one, and at most 2 % above it (fm-train: 20 %; a second fm-recover: 10 %)"
holds() { # holds PERCENT COMMAND...: plan it, run it, and compare
    local plan size
    plan=$("${@:2}" -n --json -o size | sed -n 's/.*"output": \(.*\),/\1/p')
    "${@:2}" -f -o size >/dev/null 2>&1
    size=$(stat -c %s size)
    echo "$2: $((size <= plan && 100 * plan <= (100 + $1) * size))"
}
tiny=$GOLDEN/tiny-mixtral
data=(-q -m "$tiny" -t "$tiny/calib.npy" --seq-len 128 --max-tokens 1024 --precision f32)
holds 2 fm-rank "${data[@]}"
mv size stage
holds 20 fm-train "${data[@]}" --method saliency stage
mv size stage
holds 2 fm-recover "${data[@]}" --steps 1 stage
mv size stage
holds 10 fm-recover "${data[@]}" --steps 1 --lora-rank 2 stage # the stream's adapter is replaced
rm size stage
holds 2 fm-rank -q -m "$odd" -t "$odd/tokens.npy"
rm size
fm-rank -n --model "$odd" --tokens "$odd/tokens.npy" -o ranked 2>&1 | sed 1q
echo "over a file: status ${PIPESTATUS[0]}"
echo "-- too little memory is refused; the smallest amount that the message names is accepted"
for to in -n "-n -o out" "-o out"; do
    # shellcheck disable=SC2086 # options
    fm-rank $to --model "$odd" --tokens "$odd/tokens.npy" --memory 1K 2>&1 >/dev/null |
        sed 's/--memory [0-9.]*MB or/--memory M or/'
    echo "$to: status ${PIPESTATUS[0]}"
done
tried() { # tried COMMAND...
    echo "${*:1:2}: $("$@" --memory 1K 2>&1 >/dev/null | grep -c 'fm-.*: --memory of 1.02 kB is less than this run needs; use --memory')"
    little "$@" >/dev/null 2>&1
    echo "with that amount: status $?"
}
tried fm-train -q --model "$odd" --tokens "$odd/tokens.npy" --method learned --steps 2 -f -o out ranked
tried fm-recover -q --model "$odd" --tokens "$odd/tokens.npy" --steps 2 -f -o out trained
tried fm-bench quality -q --tokens "$odd/tokens.npy" family.fm
tried fm-bench quality -q --tokens "$odd/tokens.npy" --model "$odd" trained
fm-pack -q --export even --layout uniform --budget 0.4 family.fm >/dev/null
tried fm-bench quality -q --tokens "$odd/tokens.npy" --model "$odd" even
check=(fm-verify -q --function --tokens "$odd/tokens.npy" --against family.fm even)
said=$("${check[@]}" --memory 1K 2>&1 >/dev/null)
echo "fm-verify: status $?"
[ "$said" = "$("${check[@]}" -n --memory 1K 2>&1 >/dev/null)" ] && echo "its dry run: the same message"
said=${said#*use --memory }
for dry in -n ""; do
    # shellcheck disable=SC2086 # an option or none
    "${check[@]}" $dry --memory "${said% or more}" >/dev/null
    echo "with that amount${dry:+, $dry}: status $?"
done
rm -r out even
for tokens in 8 24; do
    echo "half of $tokens tokens: $(fm-rank -n --model "$odd" --tokens "$odd/tokens.npy" --eval-tokens "$odd/tokens.npy" --seq-len 8 \
        --max-tokens $tokens --device ref -o out | grep -o 'max-tokens.*')"
done
echo "-- the suggested options halve the tokens that are ranked on, counting the sequences held out"
for more in "--max-tokens 7168" "--max-tokens 640" "--eval-tokens $tiny/heldout.npy"; do
    # shellcheck disable=SC2086 # an option and its value
    set -- -m "$tiny" -t "$tiny/calib.npy" --seq-len 128 --device ref $more
    fm-rank -n "$@" | grep -e ^tokens -e '^held out'
    half=$(fm-rank -n "$@" | grep -o -e '--max-tokens.*')
    # shellcheck disable=SC2086
    fm-rank -n "$@" $half | sed -n -e "s/^tokens.*/&, with $half/p" -e '/^held out/p'
done
fm-pack -n --model "$odd" -o out trained | awk '{ print $1 }'
echo "fm-pack: status ${PIPESTATUS[0]}"
fm-pack -n --export out --budget 0.4 family.fm | awk '{ print $1 }'
echo "export: status ${PIPESTATUS[0]}"
fm-verify -n family.fm
echo "fm-verify: status $?"
fm-bench -n kernels --shape 64,96,4,2
fm-bench -n quality --tokens "$odd/tokens.npy" family.fm |
    awk 'NR < 3 { print; next } { print $1 }' | grep -v halved # "halved" depends on the CPU
fm-rank -n --model "$odd/config.json" --tokens "$odd/tokens.npy" 2>&1 | sed "s|$GOLDEN|GOLDEN|"
echo "a file for a model: status ${PIPESTATUS[0]}"
ls
echo "-- fm-bench quality accepts every limit above the smallest"
fm-rank "${data[@]}" -o ranked.tiny >/dev/null
fm-train "${data[@]}" --method uniform --budget-step 0.1 -o trained.tiny ranked.tiny >/dev/null
fm-pack -q -m "$tiny" -o tiny.fm trained.tiny >/dev/null
measure() { fm-bench -q quality --eval-tokens "$tiny/heldout.npy" --threads 2 tiny.fm "$@"; }
smallest=$(least measure)
for percent in 100 105 110 115 120 125 130 140 150 200; do
    measure -n --memory "$(awk "BEGIN { printf \"%.0f\", ${smallest%MB} * 1e4 * $percent }")" >/dev/null 2>&1 ||
        echo "$percent %: refused"
done
rm ranked.tiny trained.tiny tiny.fm
