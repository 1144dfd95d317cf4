# A bundle, a stage stream and an export that an earlier version wrote (golden/kept) are read for good.
cp -r "$GOLDEN/kept" kept && chmod -R u+w kept && cd kept || exit 99
echo "-- verified"
for what in bundle.fm stage.fm; do
    fm-verify -q "$what" | sed 's/: .*items, .*B:/: items:/'
    echo "status ${PIPESTATUS[0]}"
done
fm-verify -q ragged --against bundle.fm | sed 's/: .*items, .*B:/: items:/'
echo "status ${PIPESTATUS[0]}"
echo "-- listed"
fm-pack --list bundle.fm | head -n 6
echo "-- the tensors of an export are those that were written then"
fm-pack -q --export again --budget 0.40 --layout ragged bundle.fm >/dev/null
cmp again/model.safetensors ragged/model.safetensors && cmp again/config.json ragged/config.json
echo "-- a stage continues from the stream"
fm-recover -q --model model --tokens model/tokens.npy --precision f32 --steps 2 --lora-rank 2 \
    -o recovered stage.fm | head -n 1
fm-pack -q --model model -o packed.fm stage.fm >/dev/null
echo "status $?"
for m in ranking.safetensors masks.zst adapter.safetensors weights/layers-00000.safetensors \
    weights/layers-00001.safetensors weights/rest.safetensors; do
    cmp <(tar xOf packed.fm $m) <(tar xOf bundle.fm $m) && echo "$m is the same"
done
