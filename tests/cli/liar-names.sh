# Bundles with valid digests, but names that the packer never writes: every tool that reads one
# refuses it before it writes anything.
# shellcheck source=tests/cli/family.bash
. "$(dirname "$0")/family.bash"
family uniform --until 0.5
forge=$(dirname "$0")/forge.py
# refused TITLE CODE: verify, list and export a bundle that CODE changed
refused() {
    echo "-- $1"
    python3 "$forge" family.fm lie.fm "$2" || return
    fm-verify -q lie.fm >/dev/null
    echo "verify: status $?"
    fm-pack -q --list lie.fm >said 2>&1
    echo "list: status $?, $(grep -c . said) line"
    fm-pack -q --export out --budget 0.2 --layout native lie.fm >said 2>complained
    echo "export: status $?, $(grep -c . complained) sentence"
    fm-pack -q --export - --budget 0.2 --layout uniform lie.fm >said 2>complained
    echo "stream: status $?, $(grep -c . complained) sentence"
    rm -rf out
}
carry() { # carry NAME: print CODE that adds a carried file of that name, in order
    echo "b.member['carried/$1'] = b'x'
order = ['build.json'] + sorted(n for n in b.member if n.startswith('carried/'))
b.member = {**{n: b.member[n] for n in order}, **b.member}"
}
more() { # more NAME: print CODE that adds an empty tensor of that name to the weights
    echo "for member, name in (('segments', 'tensor.$1'), ('weights/rest', '$1')):
    tree, data = unpack_safetensors(b.member[member + '.safetensors'])
    empty = digest(b'') if member == 'segments' else ''
    data += bytes.fromhex(empty)
    shape = [16] if empty else [0]
    tree[name] = {'dtype': 'U8', 'shape': shape, 'data_offsets': [len(data) - shape[0], len(data)]}
    if empty:
        tree['__metadata__'][name] = 'U8 0'
    b.member[member + '.safetensors'] = pack_safetensors(tree, data)"
}
refused "a directory" "$(carry a/b)"
refused "a file of weights that an export writes" "$(carry model.safetensors)"
refused "foreign weights" "$(carry pytorch_model.bin)"
refused "an index" "$(carry model.safetensors.index.json)"
refused "hidden" "$(carry .netrc)"
refused "91 bytes" "$(carry "$(printf 'a%.0s' {1..91})")"
refused "65 files" "for i in range(64):
    exec('''$(carry 'n%02i')''' % i)"
refused "out of order" "$(carry z)
b.member = {'build.json': b'{}', 'carried/z': b'', **b.member}"
refused "a tensor of the layer's own name" "$(more layers.0.down)"
refused "a shape with a sign" "$(more spare | sed 's/U8 0/U8 +0/')"
python3 "$forge" family.fm plain.fm "$(carry note.txt)"
fm-pack -q --export out --budget 0.2 plain.fm >/dev/null && ls out/note.txt
ls -A
