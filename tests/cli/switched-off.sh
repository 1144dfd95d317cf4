# Tensors that must not exist according to config.json are refused before anything is computed, because
# the keys or the weights belong to another model.  A head is refused if it differs from the embedding to
# which config.json ties it.
try() { # try MODEL KEY VALUE
    rm -rf model
    mkdir model
    cp "$GOLDEN/$1"/*.safetensors "$GOLDEN/$1"/*.json "$GOLDEN/$1/tokens.npy" model
    sed -i "s/\"$2\": *[^,]*/\"$2\": $3/" model/config.json
    echo "-- $1: $2 $3"
    fm-rank -q --model model --tokens model/tokens.npy -f -o ranked 2>&1 >/dev/null | grep -v warning
    echo "status ${PIPESTATUS[0]}"
}
try odd-dsv3 n_shared_experts 1
try odd-dsv3 n_shared_experts 0
try odd-dsv3 attention_bias false
try odd-dsv3 tie_word_embeddings true
try odd-glm4 use_qk_norm false
try odd-glm4 attention_bias false
try odd-ernie moe_num_shared_experts 0
