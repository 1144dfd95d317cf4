# One bit of a bundle's weights is flipped: an export fails and leaves no files, a pipe is not ended as a
# whole archive, and the message names the expert or tensor.  (The sweep `flips` flips bits in many places.)
# shellcheck source=tests/cli/family.bash
. "$(dirname "$0")/family.bash"
family saliency
cp family.fm t.fm
echo "-- the messages for an expert and for another tensor"
tell() { # tell MEMBER OFFSET
    block=$(tar -tRvf family.fm | sed -n "s|^block \([0-9]*\):.* weights/$1\$|\1|p")
    flip t.fm $(((block + 1) * 512 + $2))
    fm-pack -q --export out --budget 0.4 t.fm
    echo "status $?"
    fm-pack -q --export - --budget 0.4 t.fm 2>/dev/null >cut.tar
    echo "to a pipe: status $?; blocks of zeros at its end: $(tail -c 1024 cut.tar | tr -d '\0' | wc -c | sed 's/^0$/two/; s/^[1-9].*/none/')"
    fm-pack -q --export out --no-check --budget 0.4 t.fm >/dev/null
    echo "unchecked: status $?" && rm -r out
    flip t.fm $(((block + 1) * 512 + $2))
}
tell layers-00001.safetensors 5000 2>&1 | sed 's/channels [0-9]* to [0-9]*/channels A to B/'
tell rest.safetensors 9000 2>&1
echo "-- of a tensor whose name is damaged"
for layout in ragged uniform elastic native; do
    cp family.fm t.fm
    flip t.fm "$(grep -abo 'layers.0.self_attn.v_proj' t.fm | tail -n 1 | cut -d : -f 1)"
    fm-pack -q --export out --budget 0.4 --layout $layout t.fm 2>&1
    echo "status $?"
    [ ! -e out ] || echo "incomplete output"
done
echo "-- of an expert's scales that belong to no channel"
rm ranked trained family.fm
odd=$GOLDEN/packed/fp8-channel
family saliency
cp family.fm t.fm
flip t.fm "$(python3 -c '
import tarfile
from tensors import span
with tarfile.open("family.fm") as tar:
    rest = tar.getmember("weights/rest.safetensors")
    name = "model.layers.0.mlp.experts.1.down_proj.weight_scale"
    print(rest.offset_data + span(tar.extractfile(rest).read(), name)[0])')"
for export in "ragged" "uniform" "uniform --weights bf16"; do
    # shellcheck disable=SC2086 # a list of words
    fm-pack -q --export out --budget 0.4 --layout $export t.fm 2>&1
    echo "status $?"
    [ ! -e out ] || echo "incomplete output"
done
