# A stream, a bundle, an export and a state of another version: one sentence each, with both versions.
odd=$GOLDEN/odd-mixtral
forge=$(dirname "$0")/forge.py
fm-rank -q --model "$odd" --tokens "$odd/tokens.npy" -o ranked >/dev/null
fm-train -q --model "$odd" --tokens "$odd/tokens.npy" --method uniform --until 0.3 -o trained ranked \
    >/dev/null
fm-pack -q --model "$odd" -o family.fm trained >/dev/null
fm-pack -q --export out --budget 0.2 family.fm >/dev/null
python3 "$forge" ranked stream.fm 'b.manifest["schema"] = 2'
python3 "$forge" family.fm bundle.fm 'b.manifest["schema"] = 2'
sed -i 's/"schema": 1/"schema": 2/' out/fm-export.json
refused() { # refused TITLE TOOL ARGUMENT...
    echo "-- $1"
    "${@:2}" 2>&1 >/dev/null | sed "s/9${version#?}/OTHER/; s/$version/VERSION/"
    echo "status ${PIPESTATUS[0]}"
}
version=$(fm-rank --version | sed 's/.* //')
refused "a stream" fm-train -q --model "$odd" --tokens "$odd/tokens.npy" -o no stream.fm
refused "a stream, verified" fm-verify -q stream.fm
refused "a bundle" fm-pack -q --export no --budget 0.2 bundle.fm
refused "a bundle, verified" fm-verify -q bundle.fm
refused "an export, verified" fm-verify -q out --against family.fm
refused "an export, measured" fm-bench quality -q --model "$odd" --tokens "$odd/tokens.npy" out
echo '[]' >out/fm-export.json
refused "an export without a record, measured" fm-bench quality -q --model "$odd" --tokens "$odd/tokens.npy" out
# An interrupted run leaves a state; the first digit of the version in its header is then changed.
fm-train -q --model "$odd" --tokens "$odd/tokens.npy" --method learned --steps 100000 --state state \
    -o no ranked >/dev/null 2>&1 &
while kill -0 $! 2>/dev/null && [ ! -e state ]; do sleep 0.02; done
kill $!
wait $!
sed -i "s/\"fm.version\":\"$version\"/\"fm.version\":\"9${version#?}\"/" state
refused "a state" fm-train -q --model "$odd" --tokens "$odd/tokens.npy" --method learned --steps 100000 \
    --state state -o no ranked
ls
