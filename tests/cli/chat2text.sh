# fm-chat2text with a stand-in for the transformers library.  `make judge` tests it with the library.
# shellcheck source=tests/pages.bash
. "$GOLDEN/../tests/pages.bash"
tiny=$GOLDEN/tiny-mixtral
export PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$PWD/with
mkdir -p without/transformers model bare broken none
echo 'raise ModuleNotFoundError("no transformers", name="transformers")' >without/transformers/__init__.py
mkdir -p with/transformers
cat >with/transformers/__init__.py <<'PYTHON'
import json, os, sys, types
if os.environ.get("TRANSFORMERS_VERBOSITY") != "error":
    print("PyTorch was not found.", file=sys.stderr)
class AutoTokenizer:
    bos_token, bos_token_id = "<s>", 1
    def from_pretrained(path, local_files_only, trust_remote_code=None):
        assert local_files_only
        print("Loading the tokenizer.")
        if not os.path.isdir(path):
            raise OSError(f"{path}:\n  is not a folder")
        with open(os.path.join(path, "tokenizer_config.json")) as f:
            config = json.load(f)
        if "auto_map" in config:
            if trust_remote_code is None:
                trust_remote_code = input("Do you wish to run the custom code? [y/N] ") in ("y", "1")
            if not trust_remote_code:
                raise ValueError("Please pass the argument `trust_remote_code=True`")
            with open(os.path.join(path, config["auto_map"])) as f:
                exec(f.read())
        if config.get("pickle") and os.environ.get("TRUST_REMOTE_CODE") == "1":
            print("the vocabulary was unpickled", file=sys.stderr)
        if os.environ.get("HF_HUB_OFFLINE") != "1":
            print("the Hub was asked", file=sys.stderr)
        t = AutoTokenizer()
        t.chat_template = config.get("chat_template")
        return t
    def __call__(self, text):
        return types.SimpleNamespace(input_ids=[1])  # what transformers 4 adds
    def apply_chat_template(self, messages, tokenize, tools=None, documents=None, **more):
        assert tokenize is False
        wants = self.chat_template
        text = "<s>" + (f"({json.dumps(tools)})" if tools and wants == "objects" else "")
        text += "".join(f"<{key}={value}>" for key, value in more.items())
        for m in messages:
            if m["role"] not in ("user", "assistant", "developer"):
                raise RuntimeError(f"a role\n{m['role']}")
            if m["role"] == "developer":
                continue
            if isinstance(m["content"], str) == (wants == "lists"):
                content = ""
            else:
                content = m["content"] if wants != "lists" else "|".join(p["text"] for p in m["content"])
            text += f"[{m['role']}] {content}"
            for call in m.get("tool_calls", ()):
                arguments = call["function"]["arguments"]
                if wants == "objects":
                    text += f" <{call['function']['name']} " + " ".join(f"{k}={v}" for k, v in arguments.items()) + ">"
                elif wants == "strings":
                    text += " <" + call["function"]["name"] + " " + arguments + ">"
                elif wants == "printed":
                    text += f" <{call['function']['name']} {arguments}>"
            text += "</s>"
        return text
PYTHON
cat >with/transformers/utils.py <<'PYTHON'
import os
def cached_file(model, name, local_files_only, _raise_exceptions_for_missing_entries):
    path = os.path.join(model, name)
    return path if os.path.exists(path) else None
PYTHON
cat >with/tokenizers.py <<'PYTHON'
import types
class Tokenizer:
    def from_file(path):
        with open(path) as f:
            ids = [1] if '"TemplateProcessing"' in f.read() else []
        return types.SimpleNamespace(encode=lambda text: types.SimpleNamespace(ids=ids))
PYTHON
for wants in objects strings printed lists; do
    mkdir "$wants" && echo "{\"chat_template\": \"$wants\"}" >"$wants"/tokenizer_config.json
done
echo '{"chat_template": "x"}' >model/tokenizer_config.json
echo '{}' >bare/tokenizer_config.json
echo '{' >broken/tokenizer_config.json
try() {
    fm-chat2text "$@" 2>complained
    local status=$?
    grep -v '^Loading' complained
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
    echo '{"conversations": [{"from": "human", "value": "1+1?"}, {"from": "gpt", "value": "2"}]}' >sharegpt.jsonl
    examples fm-chat2text.1
    cat shared.jsonl
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
    try "${2:-model}" row.jsonl
}
row '{"messages": [{"role": "user", "content": "a"}]}\n{"text": "b"}'
row '[1]'
row '{"messages": "a"}'
row '{"messages": []}'
row '{"messages": [[{"role": "user", "content": "a"}]]}'
row '{"messages": [{"role": "system", "content": "a"}]}'
row '{"messages": [{"role": "user", "content": "\\ud800"}]}'
row '{"messages": [{"role": "user"}]}'
row '{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}'
row '{"messages": [{"role": "user", "content": [{"type": "text"}]}]}'
row '{"messages": [{"role": "user", "content": {"a": 1}}]}'
row '{"messages": [{"role": "user", "content": "a"}], "tools": {"a": 1}}'
row '{"messages": [{"role": "user", "content": "a", "tool_calls": [{"function": {"arguments": "x"}}]}]}'
row '{"messages": [{"role": "user", "content": "a", "tool_calls": [{"function": {"arguments": "[1]"}}]}]}'
row '{"messages": [{"role": "user", "content": "a", "tool_calls": [{"function": null}]}]}'
row '{"messages": ['
row '{"messages": "\0377"}'
PYTHONPATH=$PWD/without try model chats.jsonl
for arguments in "model chats.jsonl" --help; do
    # shellcheck disable=SC2086 # words
    fm-chat2text $arguments >/dev/full 2>complained
    echo "status $?: $(tail -n 1 complained)"
    # shellcheck disable=SC2086
    fm-chat2text $arguments >&- 2>complained
    echo "status $?: $(tail -n 1 complained)"
done
yes "$(head -n 1 chats.jsonl)" | head -n 20000 >many.jsonl
fm-chat2text model many.jsonl 2>/dev/null | head -n 1
echo "status ${PIPESTATUS[*]}"
echo "-- a row contains what the template requires: objects, JSON text, parts; null is absent"
calls='[{"type": "function", "function": {"name": "look_up", "arguments": "{\\"city\\": \\"Rom\\"}"}}]'
object=${calls/'"{\\"city\\": \\"Rom\\"}"'/'{"city": "Rom"}'}
ask='{"role": "user", "content": "Rain?"}'
for wants in objects strings printed; do
    for call in "$calls" "$object" "${object/'{"city": "Rom"}'/null}" '""' null \
        '[{"name": "look_up", "arguments": {"city": "Rom"}}]'; do
        row "{\"messages\": [$ask, {\"role\": \"assistant\", \"content\": null, \"tool_calls\": $call}]}" "$wants"
    done
done
parts='[{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]'
for wants in objects lists; do
    row "{\"messages\": [{\"role\": \"user\", \"content\": $parts}, $ask]}" "$wants"
done
tools='[{"type": "function", "function": {"name": "look_up"}}]'
for tools in "$tools" "\"${tools//\"/\\\\\"}\"" null '[]'; do
    row "{\"messages\": [$ask], \"tools\": $tools, \"chat_template_kwargs\": {\"think\": 1}}" objects
done
row "{\"messages\": [$ask, {\"role\": \"assistant\", \"content\": null, \"function_call\": {\"name\": \"look_up\", \"arguments\": \"{}\"}}], \"functions\": [{\"name\": \"look_up\"}], \"chat_template_kwargs\": {\"think\": 1}}" objects
echo "-- what the template leaves out"
row "{\"messages\": [$ask]}\n{\"messages\": [$ask], \"tools\": [{\"name\": \"look_up\"}]}"
row "{\"messages\": [{\"role\": \"developer\", \"content\": \"a\"}, $ask]}"
row "{\"messages\": [$ask, {\"role\": \"assistant\", \"tool_calls\": $calls}]}"
echo "-- <s> stays if tokenizer.json does not add it, whatever the library does"
cp "$tiny"/tokenizer.json model
try model row.jsonl 2>&1 | head -n 1
sed 's/"TemplateProcessing"/"ByteLevel"/' "$tiny"/tokenizer.json >model/tokenizer.json
try model row.jsonl 2>&1 | head -n 1
echo "-- code of a checkpoint runs only with --allow-code; rows answer no question, and the Hub is not asked"
mkdir coded listed
echo '{"chat_template": "x", "auto_map": "code.py"}' >coded/tokenizer_config.json
echo 'print("the code ran", input() if sys.stdin.readable() and sys.stdin.read(1) else "")' >coded/code.py
{
    echo y
    cat chats.jsonl
} >answer.jsonl
try coded <answer.jsonl
try coded --allow-code <chats.jsonl
try --allow-code coded chats.jsonl
echo '{"chat_template": "x", "pickle": true}' >model/tokenizer_config.json
HF_HUB_OFFLINE=0 TRUST_REMOTE_CODE=1 try model row.jsonl
echo '{"chat_template": {"rag": "x", "tool_use": "y"}}' >listed/tokenizer_config.json
try listed row.jsonl
echo "-- closed streams, files without permission"
try model <&-
fm-chat2text model chats.jsonl >text.jsonl 2>complained
echo "what the library prints: $(cat complained); lines of text: $(wc -l <text.jsonl)"
try model chats.jsonl <&- | tail -n 1
fm-chat2text nowhere chats.jsonl >said 2>&-
echo "status $?, $(wc -c <said) bytes"
mkdir -m 000 secret
[ ! -r secret ] || unreadable=(setpriv "--bounding-set=-dac_override,-dac_read_search") # root
"${unreadable[@]}" fm-chat2text secret chats.jsonl 2>&1
echo "status $?"
rmdir secret
ls
