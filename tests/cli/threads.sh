# One thread and two, little memory and much: the same bytes.
# shellcheck source=tests/cli/least.bash
. "$(dirname "$0")/least.bash"
odd=$GOLDEN/odd-mixtral
family() { # family NAME WITH OPTION...: run the stages through the command WITH (env, little)
    name=$1
    with=$2
    shift 2
    "$with" fm-rank -q --model "$odd" --tokens "$odd/tokens.npy" "$@" -o "$name.rank" >/dev/null 2>&1
    "$with" fm-train -q --model "$odd" --tokens "$odd/tokens.npy" --method learned --steps 60 --until 0.3 "$@" \
        -o "$name.train" "$name.rank" >/dev/null 2>&1
    "$with" fm-recover -q --model "$odd" --tokens "$odd/tokens.npy" --budget 0.2 --steps 3 "$@" \
        -o "$name.recover" "$name.train" >/dev/null 2>&1
    fm-pack -q --model "$odd" --threads "${2:-1}" -o "$name.fm" "$name.recover" >/dev/null
    echo "$name: status $?"
}
family one env --threads 1
family two env --threads 2
family three little --threads 3
for stage in rank train recover fm; do
    cmp one.$stage two.$stage && cmp one.$stage three.$stage && echo "$stage: same"
done
# In bfloat16, if the CPU has it: spans of the backward have fewer rows than the forward.
tiny=$GOLDEN/tiny-mixtral
data=(-q --model "$tiny" --tokens "$tiny/calib.npy" --seq-len 128 --max-tokens 4096)
precision=f32
fm-rank -n "${data[@]}" --precision bf16 >/dev/null 2>&1 && precision=bf16
fm-rank "${data[@]}" -o tiny.rank >/dev/null 2>&1
fm-train "${data[@]}" --method saliency --budget-step 0.4 --until 0.4 -o tiny.train tiny.rank >/dev/null 2>&1
for with in env little; do
    "$with" fm-recover "${data[@]}" --precision $precision --budget 0.4 --steps 1 --batch 32 -o tiny.$with tiny.train \
        >/dev/null 2>&1
done
cmp tiny.env tiny.little && echo "bfloat16: same"
