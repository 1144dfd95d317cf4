# fm-rank with the checkpoints, tokens and texts in golden/bad: it prints one sentence, exits with the status
# in golden/bad/EXPECT, and writes no output.  (Unit tests of the readers compare the sentences.)
odd=$GOLDEN/odd-mixtral
rank() { # rank NAME MODEL TOKENS OPTION...
    name=$1 model=$2 tokens=$3
    shift 3
    fm-rank -q --device ref --model "$model" --tokens "$tokens" "$@" -o out 2>complained >said
    echo "$name: status $?, $(wc -l <complained) sentence, $(wc -c <said) bytes said"
    [ -e out ] && echo "$name: wrote its output"
    rm -f out
}
type_of() {
    case $1 in
    tokens-*) echo "${1#tokens-}" ;;
    *) echo auto ;;
    esac
}
with() { # with FILE NAME: copy odd-mixtral, and replace its file NAME by FILE
    rm -rf model
    mkdir model
    cp "$odd"/config.json "$odd"/model* model
    cp "$GOLDEN/bad/$1" "model/$2"
}
while IFS=$(printf '\t') read -r file reader _ _; do
    case $file:$reader in
    \#*) ;;
    cd-*) rank "$file" "$odd" "$GOLDEN/bad/$file" --seq-len 4 --token-dtype "$(type_of "$reader")" ;;
    tk-*) rank "$file" "$odd" "$odd/tokens.npy" --text "$GOLDEN/bad/good-tx-plain.txt" \
        --tokenizer "$GOLDEN/bad/$file" ;;
    tx-*) rank "$file" "$odd" "$odd/tokens.npy" --text "$GOLDEN/bad/$file" \
        --tokenizer "$GOLDEN/text/mixtral.json" ;;
    ix-*) rank "$file" "$GOLDEN/bad/$file" "$odd/tokens.npy" ;;
    cf-*) with "$file" config.json && rank "$file" model "$odd/tokens.npy" ;;
    st-*) with "$file" model-00001-of-00002.safetensors && rank "$file" model "$odd/tokens.npy" ;;
    esac
done <"$GOLDEN/bad/EXPECT"
ls
