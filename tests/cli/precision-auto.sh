# --precision auto: bfloat16 for 16-bit weights if the CPU supports it, else float32; the dry run
# reports the choice, and the stage records it.
tiny=$GOLDEN/tiny-mixtral
tokens=(--tokens "$tiny/calib.npy" --seq-len 64 --max-tokens 256)
has=f32
fm-rank -n --model "$tiny" "${tokens[@]}" --precision bf16 >/dev/null 2>&1 && has=bf16
planned() { fm-rank -n --json "$@" | sed -n 's/.*"precision": "\(.*\)".*/\1/p'; }
same() { [ "$2" = "$3" ] && echo "$1: as expected" || echo "$1: $2, not $3"; }

same "bfloat16 weights" "$(planned --model "$tiny" "${tokens[@]}" --precision auto)" $has
same "nothing said" "$(planned --model "$tiny" "${tokens[@]}")" $has
same "float32 asked for" "$(planned --model "$tiny" "${tokens[@]}" --precision f32)" f32
odd=$GOLDEN/odd-olmoe
same "float32 weights" "$(planned --model "$odd" --tokens "$odd/tokens.npy" --precision auto)" f32
same "the definition" "$(planned --model "$tiny" "${tokens[@]}" --precision auto --device ref)" f32

fm-rank -q --model "$tiny" "${tokens[@]}" --precision auto -o auto.rank >/dev/null
fm-rank -q --model "$tiny" "${tokens[@]}" --precision $has -o named.rank >/dev/null
same "the manifest" "$(tar xOf auto.rank manifest.json | sed -n 's/.*"precision": *"\([a-z0-9]*\)".*/\1/p')" $has
tar xOf auto.rank ranking.safetensors | cmp - <(tar xOf named.rank ranking.safetensors) && echo "the same scores"

# A bundle and its checkpoint compute the same in either precision, although their channels have another order.
fm-train -q --model "$tiny" "${tokens[@]}" --method uniform --budget-step 0.5 -o trained auto.rank >/dev/null
fm-pack -q --model "$tiny" -o family.fm trained >/dev/null
fm-verify -q --function --model "$tiny" "${tokens[@]}" --precision $has family.fm >/dev/null && echo "the same function"
