# The whole pipeline through pipes and through files gives the same bytes; every stage verifies.
odd=$GOLDEN/odd-mixtral
set -o pipefail
fm-rank -q --model "$odd" --tokens "$odd/tokens.npy" 2>/dev/null |
    fm-train -q --model "$odd" --tokens "$odd/tokens.npy" --method saliency --budget-step 0.1 |
    fm-recover -q --model "$odd" --tokens "$odd/tokens.npy" --steps 3 |
    fm-pack -q --model "$odd" >piped.fm
echo "pipeline: ${PIPESTATUS[*]}"
fm-rank -q --model "$odd" --tokens "$odd/tokens.npy" -o ranked >/dev/null 2>&1
fm-train -q --model "$odd" --tokens "$odd/tokens.npy" --method saliency --budget-step 0.1 \
    -o trained ranked >/dev/null
fm-recover -q --model "$odd" --tokens "$odd/tokens.npy" --steps 3 -o recovered trained >/dev/null
fm-pack -q --model "$odd" -o filed.fm recovered >/dev/null
cmp piped.fm filed.fm && echo same
for stage in ranked trained recovered filed.fm; do
    fm-verify -q "$stage" | sed 's/[0-9]* items, .*B:/items:/; s/budget 0[.0-9]*/budget B/'
    echo "$stage: status ${PIPESTATUS[0]}"
    fm-verify -q <"$stage" >/dev/null
    echo "$stage from a pipe: status $?"
done
for layout in native ragged padded uniform; do
    fm-pack -q --export "$layout" --budget 0.4 --layout "$layout" filed.fm >/dev/null
    fm-verify -q "$layout" --against filed.fm | sed 's/[0-9]* items, .*B:/items:/; s/budget 0[.0-9]*/budget B/'
    echo "$layout: status ${PIPESTATUS[0]}"
    fm-pack -q --export - --budget 0.4 --layout "$layout" filed.fm 2>/dev/null | tar -xO config.json |
        cmp - "$layout/config.json"
done
ls
