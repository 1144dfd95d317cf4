# One thread and two, little memory and much: the same bytes.
odd=$GOLDEN/odd-mixtral
family() { # family NAME OPTION...
    name=$1
    shift
    fm-rank -q --model "$odd" --tokens "$odd/tokens.npy" "$@" -o "$name.rank" >/dev/null 2>&1
    fm-train -q --model "$odd" --tokens "$odd/tokens.npy" --method learned --steps 60 --until 0.3 "$@" \
        -o "$name.train" "$name.rank" >/dev/null 2>&1
    fm-recover -q --model "$odd" --tokens "$odd/tokens.npy" --budget 0.2 --steps 3 "$@" \
        -o "$name.recover" "$name.train" >/dev/null 2>&1
    fm-pack -q --model "$odd" --threads "${2:-1}" -o "$name.fm" "$name.recover" >/dev/null
    echo "$name: status $?"
}
family one --threads 1
family two --threads 2
family three --threads 3 --memory 1MB
for stage in rank train recover fm; do
    cmp one.$stage two.$stage && cmp one.$stage three.$stage && echo "$stage: same"
done
