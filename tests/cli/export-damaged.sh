# One bit of a bundle's weights is flipped, in many places: an export fails and leaves no files, or
# does not contain the damaged channel.  FM_FLIPS: number of places.
# shellcheck source=tests/cli/family.bash
. "$(dirname "$0")/family.bash"
family saliency
begin=$(tar -tRvf family.fm | sed -n 's/^block \([0-9]*\):.* weights\/layers-00000.safetensors$/\1/p')
first=$(((begin + 1) * 512)) last=$(($(wc -c <family.fm) - 2048))
for layout in ragged uniform elastic native; do
    fm-pack -q --export "good-$layout" --budget 0.4 --layout "$layout" family.fm >/dev/null
    fm-pack -q --export - --budget 0.4 --layout "$layout" family.fm >"good-$layout.tar"
done
caught=0 same=0 wrong=0 i=0
cp family.fm t.fm
while [ $i -lt "${FM_FLIPS:-96}" ]; do
    offset=$((first + (i * 7919 * 131 + 17) % (last - first)))
    flip t.fm $offset
    case $((i % 4)) in 0) layout=ragged ;; 1) layout=uniform ;; 2) layout=elastic ;; *) layout=native ;; esac
    fm-pack -q --export out --budget 0.4 --layout $layout t.fm >/dev/null 2>said
    status=$?
    if [ $status = 65 ] && [ ! -e out ]; then
        caught=$((caught + 1))
    elif [ $status = 0 ] && diff -r out good-$layout >/dev/null; then
        same=$((same + 1))
    else
        wrong=$((wrong + 1)) && echo "offset $offset, $layout: status $status" && cat said
    fi
    rm -rf out
    flip t.fm $offset
    i=$((i + 1))
done
echo "wrong: $wrong; every place was caught or not in the export: $((caught + same == i))"
[ $caught -gt $((i / 4)) ] && echo "more than a quarter were caught"
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
