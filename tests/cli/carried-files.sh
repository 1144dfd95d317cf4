# Which files of a checkpoint's directory are carried: token files only with --carry; a link to a file
# elsewhere is refused without --carry.
odd=$GOLDEN/odd-mixtral
rank() {
    fm-rank --model "$@" >/dev/null 2>said
    echo "status $?"
    sed "s|$PWD|HERE|" said | grep -v '^layer\|^ranked\|^tokens\|^ *[0-9]'
}
members() {
    tar tf "$1" | grep '^carried/'
}
cp -rL "$odd" model && chmod -R u+w model
echo secret >key && chmod 600 key
echo "-- token files are not carried"
rank model --tokens model/tokens.npy -o plain
members plain
echo "-- a pattern includes one"
rank model --tokens model/tokens.npy --carry 'tok*.npy' -o more
members more
echo "-- a pattern without a file"
rank model --tokens model/tokens.npy --carry '*.pdf' -o none
echo "-- a link to a file elsewhere"
ln -s ../key model/LICENSE
rank model --tokens model/tokens.npy -o linked
ls linked 2>/dev/null
echo "-- requested by name"
rank model --tokens model/tokens.npy --carry LICENSE -o asked
members asked
echo "-- the messages of a dry run"
rm model/LICENSE && echo free >model/LICENSE
mkdir model/additional_chat_templates && echo "{{ tools }}" >model/additional_chat_templates/tool_use.jinja
echo "aGVsbG8= 0" >model/tiktoken.model
echo theirs >model/THIRD_PARTY_NOTICES.md
echo mine >model/notes.txt
ln -s nowhere model/broken.txt
fm-rank --model model --tokens model/tokens.npy --dry-run | grep '^carried\|^left out'
fm-rank --model model --tokens model/tokens.npy --dry-run --json | python3 -c '
import json, sys
said = json.load(sys.stdin)
print(said["carried"], said["left_out"])'
echo "-- from the checkpoint to an export"
rank model --tokens model/tokens.npy -o ranked
fm-train -q --model model --tokens model/tokens.npy --method uniform -f -o trained ranked >/dev/null &&
    fm-pack -q --model model -o family.fm trained >/dev/null &&
    fm-pack -q --export out --budget 0.4 --layout padded family.fm >/dev/null
ls out
fm-verify -q --against family.fm out | sed 's/[0-9.]* [kM]B/SIZE/'
