# Sparse indexers: sequences are limited to the length at which attention still sees all keys; the
# indexers' tensors are carried byte for byte; a missing or unexpected indexer is refused.
model=$GOLDEN/odd-glm5
echo "== as far as it sees all keys"
fm-rank --model "$model" --tokens "$model/tokens.npy" --dry-run | grep '^longest'
fm-rank --model "$model" --tokens "$model/tokens.npy" --dry-run --json | grep '"longest'
fm-rank --model "$model" --tokens "$model/tokens.npy" --dry-run --seq-len 20
echo "status $?"
echo "== carried"
fm-rank -q --model "$model" --tokens "$model/tokens.npy" 2>/dev/null |
    fm-train -q --model "$model" --tokens "$model/tokens.npy" --eval-tokens "$model/tokens.npy" \
        --method saliency --budget-step 0.2 2>/dev/null |
    fm-pack -q --model "$model" -o family.fm >/dev/null
cat >indexers.py <<'END'
import sys
from tensors import read
want, *exports = ({n: t for n, t in read(folder).items() if ".indexer." in n} for folder in sys.argv[1:])
for folder, have in zip(sys.argv[2:], exports):
    print(folder, len(have), "tensors of indexers:", "the same bytes" if have == want else "others")
END
for layout in uniform padded ragged elastic layer; do
    fm-pack -q --export $layout --layout $layout --budget 0.4 family.fm >/dev/null
done
python3 indexers.py "$model" uniform padded ragged elastic layer
echo "== one is missing, one is too many"
mkdir less more
cp "$model"/* less && cp "$model"/* more
sed -i 's/"index_topk_freq": 2/"index_topk_freq": 1/' less/config.json
sed -i 's/"index_topk_freq": 2/"index_topk_pattern": "FSS", "index_topk_freq": null/' more/config.json
for name in less more; do
    fm-rank -q --model $name --tokens "$model/tokens.npy" -o refused
    echo "status $?"
done
