# --if-changed: if a stage's output was made from the same inputs and options, the tool only says that it is
# up to date; otherwise the stage runs.
cp -r "$GOLDEN/odd-mixtral" model
took() { # messages without times and sizes
    sed -E 's/reading [0-9.]+ [kMG]?B/reading BYTES/; s/took .*/took TIME/; s/^(masks|bundle|steps).*/made/' |
        grep -v '^weights\|^memory\|^budgets\|^held out\|^ranked\|^tokens\|^layer\|^ *[0-9]\|^CE\|^scores\|^adapter\|^loss\|extra'
}
stage() { # stage TOOL OUTPUT ARGUMENT...
    local tool=$1 output=$2
    shift 2
    "$tool" --model model --if-changed -o "$output" "$@" 2>&1 | took
    echo "$tool: status ${PIPESTATUS[0]}"
}
tokens=(--tokens model/tokens.npy)
all() {
    echo "-- $*"
    stage fm-rank ranked -q "${tokens[@]}" "${rank[@]}"
    stage fm-train trained -q "${tokens[@]}" --method saliency --budget-step 0.1 "${train[@]}" ranked
    stage fm-recover recovered -q "${tokens[@]}" --steps 1 --seq-len 8 trained
    stage fm-pack family.fm -q recovered
}
rank=() train=()
all first
fm-verify -q family.fm | grep -o 'ok$'
touch model/* ranked trained
train=(--threads 2)
all other times, and an option without effect on the output
train=(--until 0.5)
all another option of fm-train
printf ' ' >>model/tokenizer_config.json 2>/dev/null || printf '{}' >model/tokenizer_config.json
all a carried file
python3 - <<'P'
import glob, struct
name = sorted(glob.glob("model/model*.safetensors"))[0]
data = bytearray(open(name, "rb").read())
at = 8 + struct.unpack("<Q", data[:8])[0]
data[at] ^= 1
open(name, "wb").write(data)
P
all a weight
echo "-- said"
fm-rank --model model "${tokens[@]}" --if-changed -o ranked 2>&1 >/dev/null | took
fm-rank --model model "${tokens[@]}" --if-changed -o ranked --json 2>/dev/null | sed 's/"seconds": .*/"seconds": S/'
echo "-- refused"
echo mine >notes
fm-rank -q --model model "${tokens[@]}" --if-changed -o notes
echo "status $?"
fm-rank -q --model model "${tokens[@]}" --if-changed
echo "status $?"
fm-rank -q --model model "${tokens[@]}" -o plain >/dev/null
fm-rank -q --model model "${tokens[@]}" --if-changed -o plain
echo "status $?"
