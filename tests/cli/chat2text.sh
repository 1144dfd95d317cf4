# fm-chat2text with a stand-in for the transformers library.  `make judge` tests it with the library.
# shellcheck source=tests/pages.bash
. "$GOLDEN/../tests/pages.bash"
tiny=$GOLDEN/tiny-mixtral
export PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$PWD/with
mkdir -p with without/transformers model bare broken none
echo 'raise ModuleNotFoundError("no transformers", name="transformers")' >without/transformers/__init__.py
cat >with/transformers.py <<'PYTHON'
import json, os, sys, types
if os.environ.get("TRANSFORMERS_VERBOSITY") != "error":
    print("PyTorch was not found.", file=sys.stderr)
class AutoTokenizer:
    bos_token, bos_token_id = "<s>", 1
    def from_pretrained(path, local_files_only):
        assert local_files_only
        if not os.path.isdir(path):
            raise OSError(f"{path}:\n  is not a folder")
        t = AutoTokenizer()
        with open(os.path.join(path, "tokenizer_config.json")) as f:
            t.chat_template = json.load(f).get("chat_template")
        return t
    def __call__(self, text):
        return types.SimpleNamespace(input_ids=[1])
    def apply_chat_template(self, messages, tokenize):
        assert tokenize is False
        for m in messages:
            if m["role"] not in ("user", "assistant"):
                raise RuntimeError(f"a role\n{m['role']}")
        return "<s>" + "".join(f"[{m['role']}] {m['content']}</s>" for m in messages)
PYTHON
echo '{"chat_template": "x"}' >model/tokenizer_config.json
echo '{}' >bare/tokenizer_config.json
echo '{' >broken/tokenizer_config.json
try() {
    fm-chat2text "$@" 2>complained
    local status=$?
    cat complained
    echo "status $status: $*"
}
cat >chats.jsonl <<'JSON'
{"messages": [{"role": "user", "content": "one  two é?"}, {"role": "assistant", "content": "17\n"}]}

{"id": 1, "messages": [{"role": "user", "content": "\ud83d\ude00"}]}
JSON
try model chats.jsonl
try model <chats.jsonl
try model - <chats.jsonl >text.jsonl
fm-chat2text model chats.jsonl | fm-rank -q --model "$tiny" --seq-len 16 --text - -o ranked >/dev/null 2>&1
echo "ranked: status ${PIPESTATUS[*]}"
tar xOf ranked manifest.json | grep '"documents"'
echo "-- the commands of fm-chat2text(1) and fm-guide(7), from the pages"
mkdir -p page/MODEL && cp "$tiny"/{config.json,model.safetensors,tokenizer.json} page/MODEL
cp model/tokenizer_config.json page/MODEL
yes "$(head -n 1 chats.jsonl)" | head -n 100 >page/chats.jsonl
(
    cd page || exit 99
    examples fm-chat2text.1
    examples fm-guide.7
    wc -l <chat.jsonl
    ls ranked
)
echo "-- the message that refers to it"
fm-rank -q -n --model "$tiny" --seq-len 4 --text chats.jsonl 2>&1
echo "-- mistakes"
try --help
try
try --model model
try model a b
try nowhere chats.jsonl
try model nowhere.jsonl
try none chats.jsonl
try model none
try bare chats.jsonl
try broken chats.jsonl | sed 's/JSONDecodeError: .*/JSONDecodeError: .../'
row() {
    printf '%b\n' "$1" >row.jsonl
    try model row.jsonl
}
row '{"messages": [{"role": "user", "content": "a"}]}\n{"text": "b"}'
row '[1]'
row '{"messages": "a"}'
row '{"messages": [{"role": "system", "content": "a"}]}'
row '{"messages": [{"role": "user", "content": "\\ud800"}]}'
row '{"messages": [{"role": "user"}]}'
row '{"messages": ['
row '{"messages": "\0377"}'
PYTHONPATH=$PWD/without try model chats.jsonl
fm-chat2text model chats.jsonl >/dev/full 2>complained
echo "status $?: $(cat complained)"
yes "$(head -n 1 chats.jsonl)" | head -n 20000 >many.jsonl
fm-chat2text model many.jsonl | head -n 1
echo "status ${PIPESTATUS[*]}"
ls
