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
fm-rank --model model --tokens model/tokens.npy --dry-run | grep '^carried'
fm-rank --model model --tokens model/tokens.npy --dry-run --json | python3 -c '
import json, sys
print(json.load(sys.stdin)["carried"])'
