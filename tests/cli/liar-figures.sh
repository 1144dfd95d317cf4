# Bundles and streams with valid digests, but figures that contradict shapes, widths or options: the
# findings of fm-verify, and whether --list and --export accept them.
# shellcheck source=tests/cli/family.bash
. "$(dirname "$0")/family.bash"
family uniform --until 0.5
fm-train -q --model "$odd" --tokens "$odd/tokens.npy" --method learned --steps 2 --until 0.2 --budget-step 0.1 \
    -o learned ranked >/dev/null 2>&1
fm-train -q --model "$odd" --tokens "$odd/tokens.npy" --method exchange --until 0.2 --budget-step 0.1 \
    -o exchanged ranked >/dev/null 2>&1
forge=$(dirname "$0")/forge.py
lied() { # lied FROM CODE
    echo "-- $1: $2"
    python3 "$forge" "$1" lie.fm "$2"
    fm-verify -q lie.fm 2>/dev/null | head -n 1 | sed 's/items, .*B:/items:/; s/[0-9]\{3,\}/N/g'
    echo "verify ${PIPESTATUS[0]}"
    fm-pack --list lie.fm >/dev/null 2>&1
    echo "list $?"
    [ "$1" != family.fm ] || fm-pack -q --export out --dry-run --budget 0.2 lie.fm >/dev/null 2>&1 ||
        echo "export $?"
}
for from in family.fm trained; do
    for key in bytes params params_active budget removed; do
        lied $from "b.manifest['budgets'][1]['$key'] *= 2"
    done
    lied $from "b.manifest['budgets'][1]['step'] = 1"
    lied $from "b.manifest['budgets'][1]['widths']['mean'] += 1"
    lied $from "for x in b.manifest['budgets']: x['bytes'] += 2**40"
    lied $from "b.manifest['model']['params'] += 1"
    lied $from "b.manifest['model']['experts_per_token'] = 3"
    lied $from "b.manifest['model']['family'] = 'olmoe'"
done
for from in family.fm trained; do
    lied $from "for x in b.manifest['budgets']: x['bytes'] += 2"
    lied $from "b.manifest['model']['others'] = {'F32': 1}"
    lied $from "b.manifest['model']['others'] = {'F32': 2**40}"
    lied $from "b.manifest['model']['others'] = {'U8': 1}"
    lied $from "b.manifest['model']['others'] = {'unread': {'tensors': 1, 'bytes': 4}}"
done
lied family.fm "b.add_tensor('score.weight', 'F32', [1], bytes(4))"
lied family.fm "b.add_tensor('score.weight', 'F32', [0], b'')"
lied family.fm "b.add_tensor('model.layers.9.norm.weight', 'F32', [1], bytes(4))"
lied family.fm "b.add_tensor('model.layers.0.block_sparse_moe.experts.0.w1.weight', 'F32', [1], bytes(4))"
lied family.fm "b.add_tensor('score.weight', 'F32', [10**6], bytes(4 * 10**6))
b.manifest['model']['others'] = {'unread': {'tensors': 1, 'bytes': 4 * 10**6}}"
lied learned "b.manifest['budgets'][0]['step'] = 5"
lied exchanged "b.manifest['budgets'][1]['step'] = 10001"
lied family.fm "b.manifest['budgets'][1]['quality'] = {'ce': 1, 'kl': 0, 'agree': 1, 'positions': 9}"
echo "-- what cannot be recomputed"
lied family.fm "b.manifest['budgets'][1]['quality'].update(ce=1, kl=0, agree=1)"
