# Results for scripts: --json on standard output, or on standard error if a stream is on standard
# output.
odd=$GOLDEN/odd-mixtral
fm-rank -q --json --model "$odd" --tokens "$odd/tokens.npy" --precision f32 -o ranked 2>/dev/null >report.json
grep -v '"seconds"\|"ce"' report.json
fm-rank -q --json --model "$odd" --tokens "$odd/tokens.npy" --precision f32 2>&1 >stream | grep -v warning |
    grep -v '"seconds"' >beside.json
cmp stream ranked && echo same
grep -v '"seconds"' report.json | cmp - beside.json && echo same
fm-train -q --model "$odd" --tokens "$odd/tokens.npy" --precision f32 --method uniform \
    --budget-step 0.2 --until 0.6 -o trained ranked >/dev/null
fm-pack --list --json trained | grep -v '"ce"\|"kl"\|"agree"' |
    sed '/^        "[^r][^"]*": {$/,/}/d' # of the layouts, only ragged
fm-pack --list ranked
