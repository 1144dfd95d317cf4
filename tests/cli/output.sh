# Failures of standard output: full, closed, without a reader; and an output file that exists.
odd=$GOLDEN/odd-mixtral
rank() {
    fm-rank -q --model "$odd" --tokens "$odd/tokens.npy" "$@" 2>&1 >&3 3>&- | grep -v warning
    return "${PIPESTATUS[0]}"
}
rank 3>/dev/full
echo "full: status $?"
fm-rank --help >/dev/full
echo "full, help: status $?"
fm-rank -q --model "$odd" --tokens "$odd/tokens.npy" 2>/dev/null >&-
echo "closed: status $?"
fm-rank --help >&-
echo "closed, help: status $?"
fm-rank -q --model "$odd" --tokens "$odd/tokens.npy" 2>/dev/null | true
echo "reader gone: status ${PIPESTATUS[0]}"
fm-rank -q --model "$odd" --tokens "$odd/tokens.npy" -o err-closed >/dev/null 2>&-
echo "standard error closed: status $?"
: >there
rank -o there 3>&1
echo "exists: status $?"
rank -o there --force 3>/dev/null
echo "forced: status $?"
cmp there err-closed && echo same
fm-train --model "$odd" --tokens "$odd/tokens.npy" --method uniform --until 0.8 -o out there \
    <&- >/dev/null
echo "standard input closed and not needed: status $?"
ls -A
cp -r "$odd" model
fm-rank -q --model model --tokens model/tokens.npy --force -o model/model-00001-of-00002.safetensors 2>&1
echo "over its own input: status $?"
