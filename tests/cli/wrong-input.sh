# Paths that users pass by mistake instead of a checkpoint, tokens or a stage stream: each error
# gives the next step; and a model by its name on the hub.
odd=$GOLDEN/odd-mixtral
unset HF_HOME XDG_CACHE_HOME
export HF_HUB_CACHE=$PWD/cache HOME=$PWD
snapshot=cache/models--some--model/snapshots/0123abc
mkdir -p $snapshot cache/models--some--model/blobs cache/models--some--model/refs cache/models--other--model unindexed torch gguf empty
printf 0123abc >cache/models--some--model/refs/main
for file in "$odd"/*; do # as in the cache of the hub's programs
    cp "$file" cache/models--some--model/blobs
    ln -s "../../blobs/${file##*/}" $snapshot
done
cp "$odd"/* unindexed && rm -f unindexed/*.index.json
cp "$odd/config.json" torch && touch torch/pytorch_model.bin
cp "$odd/config.json" gguf && touch gguf/model-q4.gguf
cp "$odd/config.json" empty
plan() { # plan MODEL [TOKENS]: print the error, or that the dry run succeeded
    timeout 60 fm-rank -n --model "$1" --tokens "${2:-$odd/tokens.npy}" >said 2>&1
    local status=$?
    if [ $status = 0 ]; then
        echo "$1: planned"
    else
        sed "s|$PWD|HERE|; s|$odd|ODD|" said
    fi
    echo "status $status"
}
for model in nothing some/model some/other cache cache/models--some--model unindexed torch gguf empty; do
    plan $model
done
printf '../../..' >cache/models--some--model/refs/main
plan some/model
rm cache/models--some--model/refs/main && mkfifo cache/models--some--model/refs/main
plan some/model
rm -r cache/models--some--model/refs
plan some/model
(
    unset HF_HUB_CACHE
    HF_HOME=$PWD/home plan some/model
    XDG_CACHE_HOME=$PWD/xdg plan some/model
    plan some/model
)
echo "-- the cache's place as huggingface_hub reads it"
mkdir -p cache/models--some--model/refs moved/hub deep/huggingface
mv cache/models--some--model moved/hub && printf 0123abc >moved/hub/models--some--model/refs/main
ln -s ../../moved/hub deep/huggingface/hub
(
    unset HF_HUB_CACHE
    export BASE=$PWD/moved
    place() {
        env "$1" fm-rank -n --model some/model --tokens "$odd/tokens.npy" >said 2>&1 && echo planned >said
        sed "s|$PWD|HERE|" said
    }
    # shellcheck disable=SC2016,SC2088 # the tools expand these
    for value in HF_HUB_CACHE='~/moved/hub' HF_HUB_CACHE='$BASE/hub' HUGGINGFACE_HUB_CACHE='${BASE}/hub' \
        HF_HOME='~/moved' HF_HOME='$BASE' XDG_CACHE_HOME='$HOME/deep' HF_HOME='~root/nothing' \
        HF_HOME='~nobody-here' HF_HUB_CACHE='$NOT_SET/${NOR_THIS}/$' HF_HUB_CACHE='${BASE' HF_HOME="$BASE"'\~'; do
        echo "$value: $(place "$value")" | sed "s|$PWD|HERE|"
    done
)
echo "-- pointers where files should be"
cp -r "$odd" pointer && rm -r pointer/*.npy
pointer() { # pointer FILE: put a pointer of git-lfs in its place
    cp "pointer/$1" kept 2>/dev/null
    printf 'version https://git-lfs.github.com/spec/v1\noid sha256:%064d\nsize 4976698672\n' 1 >"pointer/$1"
    fm-rank -q -f -m pointer -t "$odd/tokens.npy" -o none >/dev/null 2>said
    echo "status $?: $(cat said)"
    rm "pointer/$1"
    [ ! -e kept ] || mv kept "pointer/$1"
}
for file in config.json model.safetensors.index.json model-00001-of-00002.safetensors tokenizer.json \
    tokenizer.model; do
    pointer $file
done
echo '{"text": "once"}' >rows.jsonl
plan "$odd" rows.jsonl
printf '\001\000\002\000\003\000' >raw
plan "$odd" raw
fm-rank -q --model "$odd" --tokens "$odd/tokens.npy" -o ranked >/dev/null
echo "-- no stream"
for give in "cat /dev/null |" "cat rows.jsonl |" "</dev/null"; do
    case $give in
    '<'*) bash -c "fm-pack --model $odd -o family.fm $give" 2>&1 ;;
    *) bash -c "$give fm-pack --model $odd -o family.fm" 2>&1 ;;
    esac
    echo "status $?"
done
echo "-- a checkpoint where a stream should be, and without its option"
mkdir "mein Modell ä" && cp "$odd"/* "mein Modell ä"
fm-pack --list "mein Modell ä"
fm-bench quality --eval-tokens "$odd/tokens.npy" "mein Modell ä"
fm-rank "mein Modell ä"
fm-rank -q -m "mein Modell ä" --tokens "mein Modell ä/tokens.npy" -o "mein Modell ä.fm" >/dev/null
fm-verify "mein Modell ä.fm" | sed 's/:.*:/:/'
