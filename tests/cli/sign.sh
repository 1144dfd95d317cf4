# Signatures of exports and bundles: keys of openssl(1) on three curves, and tampering that is refused.
# shellcheck source=tests/cli/family.bash
. "$(dirname "$0")/family.bash"
key() { # key NAME CURVE [OPTION...]: NAME.pem and NAME.pub
    openssl genpkey -algorithm EC -pkeyopt "ec_paramgen_curve:$2" "${@:3}" -out "$1.pem" 2>/dev/null
    openssl pkey -in "$1.pem" -pubout -out "$1.pub" "${passin[@]}" 2>/dev/null
}
said() { # keys differ from run to run
    sed 's/key [0-9a-f]\{16\}/key KEY/; s/[0-9a-f]\{16\}\.\.\./KEY/g; s/, [0-9.]* [kM]*B\([,:]\)/, SIZE\1/; s/byte [0-9]*/byte N/; s/[0-9a-f]\{64\}/SHA256/g' "$@"
}
try() { # try ARGUMENT...: print fm-verify's messages and status
    fm-verify -q "$@" >out 2>err </dev/null
    local status=$?
    said out err
    echo "status $status"
}
passin=()
family saliency --until 0.5
fm-pack -q --export plain --budget 0.4 --base-model me/mine family.fm >/dev/null
for curve in P-256 P-384 P-521; do key $curve $curve; done
key other P-256

echo "== a directory, a file"
for curve in P-256 P-384 P-521; do
    rm -rf signed && cp -r plain signed
    try --sign $curve.pem signed
    try --trusted $curve.pub signed
done
try --sign P-256.pem family.fm
try --trusted P-256.pub family.fm
try --sign P-256.pem family.fm
try --sign P-256.pem --force family.fm
try signed
try --against family.fm signed
fm-verify -q --json --trusted P-521.pub signed | said | grep -v -e seconds -e '"bytes"'
fm-verify -q -n --sign P-256.pem signed | said
fm-verify -q -n --trusted P-256.pub family.fm | said
openssl dgst -sha256 -r family.fm | cut -c1-64 >want
python3 - <<'END'
import base64, json
statement = json.loads(base64.b64decode(json.load(open("family.fm.sig"))["dsseEnvelope"]["payload"]))
resource = statement["predicate"]["resources"]
print(len(resource), resource[0]["name"], resource[0]["digest"] == open("want").read().strip())
END

echo "== a file under another name"
mv family.fm other.fm && mv family.fm.sig other.fm.sig
try --trusted P-256.pub other.fm
fm-verify -q --json --trusted P-256.pub other.fm | grep signed_as
ln -s other.fm family.fm && ln -s other.fm.sig family.fm.sig
try --trusted P-256.pub family.fm
rm family.fm family.fm.sig && mv other.fm family.fm && mv other.fm.sig family.fm.sig

echo "== what a download leaves, and links of the Hugging Face cache"
rm -rf signed && cp -r plain signed && try --sign P-256.pem signed >/dev/null
mkdir -p signed/.git signed/.cache/huggingface
touch signed/.git/HEAD signed/.gitattributes signed/.cache/huggingface/x
try --trusted P-256.pub signed
snapshot=hub/models--me--mine/snapshots/0123
mkdir -p $snapshot hub/models--me--mine/blobs hub/models--you--yours/blobs
for file in signed/*; do
    cp "$file" "hub/models--me--mine/blobs/${file##*/}"
    ln -s "../../blobs/${file##*/}" "$snapshot/${file##*/}"
done
try --trusted P-256.pub $snapshot
rm $snapshot/model.sig && try --sign P-256.pem $snapshot
try --trusted P-256.pub $snapshot
cp $snapshot/model.sig signed/ && try --trusted P-256.pub signed

echo "== passphrases"
passin=(-passin pass:sesame)
key locked P-256 -aes256 -pass pass:sesame
rm -rf signed && cp -r plain signed
try --sign locked.pem signed
try --sign locked.pem --passphrase-fd 3 signed 3< <(echo barley)
try --sign locked.pem --passphrase-fd 9 signed 9<&-
try --sign locked.pem --passphrase-fd 3 signed 3< <(head -c 2000 /dev/zero | tr '\0' x)
try --sign locked.pem --passphrase-fd 3 signed 3< <(echo sesame)
try --trusted locked.pub signed

echo "== an edited card and --force after a signature"
echo more >>signed/README.md
try signed
try --trusted locked.pub signed
fm-pack -q --force -x signed --budget 0.2 family.fm >/dev/null && ls signed

echo "== what cannot be signed"
rm -rf signed && cp -r plain signed
cp P-256.pem signed/key.pem && try --sign signed/key.pem signed && rm signed/key.pem
ln P-256.pem signed/key.pem && try --sign P-256.pem signed && rm signed/key.pem
mkfifo signed/pipe && try --sign P-256.pem signed && rm signed/pipe
ln -s ../family.fm signed/family.fm && try --sign P-256.pem signed | sed 's:/[^ ]*/family.fm:FAMILY:' && rm signed/family.fm
ln -s config.json signed/link.json && try --sign P-256.pem signed | sed "s:'/[^']*/signed:'DIR:" && rm signed/link.json
touch signed/$'a\nb' && try --sign P-256.pem signed && rm signed/$'a\nb'
touch signed/$'a\xff' && try --sign P-256.pem signed && rm signed/$'a\xff'
mkdir -p signed/1/2/3/4/5/6/7/8/9/10/11/12/13/14/15/16/17 && try --sign P-256.pem signed && rm -r signed/1
mkdir empty && try --sign P-256.pem empty
try --sign P-256.pem absent
try --sign absent.pem signed
try --sign P-256.pub signed
try --sign P-256.pem
try --sign P-256.pem --trusted P-256.pub signed
try --trusted P-256.pub --passphrase-fd 3 signed
try --passphrase-fd 3 signed
openssl genpkey -algorithm ED25519 -out ed.pem
try --sign ed.pem signed
[ -e signed/model.sig ] || echo "nothing was left"

echo "== tampering"
try --sign P-256.pem signed >/dev/null
fm-verify -q --trusted P-256.pub signed >/dev/null && echo untouched
tries=0 refused=0
tamper() { # tamper WHAT COMMAND...: change a copy of the directory, which must be refused
    rm -rf bad && cp -a signed bad
    local what=$1
    (cd bad && eval "$2")
    tries=$((tries + 1))
    fm-verify -q --trusted "${3:-P-256.pub}" bad >out 2>err </dev/null
    local status=$?
    [ $status = 0 ] || refused=$((refused + 1))
    printf '%s: %s' "$what" "$status: "
    { grep -v -e '^ignored' -e 'not verified$' out; cat err; } | head -n 1 | said | sed "s:'/[^']*/:'.../:g"
}
edit() { # edit PYTHON: edit the signature's JSON as b, or its statement as s, which is encoded again
    python3 - "$1" <<'END'
import base64, json, sys
b = json.load(open("model.sig"))
s = json.loads(base64.b64decode(b["dsseEnvelope"]["payload"]))
was = json.dumps(s)
e, m, r = b["dsseEnvelope"], b["verificationMaterial"], s["predicate"]["resources"]
exec(sys.argv[1])
if json.dumps(s) != was:
    e["payload"] = base64.b64encode(json.dumps(s).encode()).decode()
json.dump(b, open("model.sig", "w"))
END
}
weights=model.safetensors
tamper "a byte of the weights" "flip $weights 9000"
tamper "the first byte of the weights" "flip $weights 0"
tamper "the last byte of the weights" "flip $weights \$((\$(stat -c %s $weights) - 1))"
tamper "weights cut by a byte" "truncate -s -1 $weights"
tamper "weights longer by a byte" "truncate -s +1 $weights"
tamper "weights emptied" ": >$weights"
tamper "config.json, one letter" "flip config.json 10"
tamper "an added line in README.md" "echo >>README.md"
tamper "code changed" "echo >>modeling_fm.py"
tamper "a file removed" "rm config.json"
tamper "a file renamed" "mv README.md README.txt"
tamper "two files swapped" "mv config.json x && mv fm-export.json config.json && mv x fm-export.json"
tamper "an added file" "touch notes.txt"
tamper "an added weight file" "cp $weights model-2.safetensors"
tamper "an added code file" "echo 'import os' >tokenization_x.py"
tamper "an added hidden file" "touch .hidden"
tamper "an added file in an added directory" "mkdir sub && touch sub/x"
tamper "a .gitignore below the top" "mkdir sub && touch sub/.gitignore"
tamper "a name that begins like .cache" "touch .cache2"
tamper "a file replaced by a directory" "rm README.md && mkdir README.md"
tamper "a file replaced by a link to a copy of it" "mv README.md ../README.copy && ln -s ../README.copy README.md"
tamper "a file replaced by a link within the directory" "rm README.md && ln -s config.json README.md"
tamper "a file replaced by a pipe" "rm README.md && mkfifo README.md"
tamper "a file replaced by a link to itself" "rm README.md && ln -s README.md README.md"
tamper "a link to a directory outside" "ln -s .. up"
tamper "a link to another repository's blobs" "ln -s $PWD/hub/models--you--yours/blobs b"
tamper "no signature" "rm model.sig"
tamper "an empty signature" ": >model.sig"
tamper "half a signature" "truncate -s 900 model.sig"
tamper "text after the signature" "echo x >>model.sig"
tamper "a signature that is a directory" "rm model.sig && mkdir model.sig"
tamper "a signature that is a pipe" "rm model.sig && mkfifo model.sig"
tamper "a signature of 49 MB" "truncate -s 51000000 model.sig"
tamper "another public key" : other.pub
tamper "a public key of another curve" : P-384.pub
tamper "the private key for the public one" : P-256.pem
tamper "signed again, by another key" "rm model.sig && fm-verify -q --sign ../other.pem . >/dev/null"
tamper "signed by another key, with this one's hint" \
    "hint=\$(grep -o '[0-9a-f]\{64\}' model.sig) && rm model.sig && fm-verify -q --sign ../other.pem . >/dev/null &&
     edit 'm[\"publicKey\"][\"hint\"] = \"'\$hint'\"'"
tamper "the signature of another directory" "cp ../hub/models--me--mine/snapshots/0123/model.sig . && touch x"
tamper "the signature of a file" "cp ../family.fm.sig model.sig"
tamper "another hint" "edit 'm[\"publicKey\"][\"hint\"] = \"0\" * 64'"
tamper "no hint, another key" "edit 'del m[\"publicKey\"][\"hint\"]'" other.pub
tamper "a certificate instead" "edit 'm[\"certificate\"] = {\"rawBytes\": \"AAAA\"}'"
tamper "another media type" "edit 'b[\"mediaType\"] = \"application/json\"'"
tamper "another payload type" "edit 'e[\"payloadType\"] = \"text/plain\"'"
tamper "an added member" "edit 'b[\"more\"] = 1'"
tamper "two signatures" "edit 'e[\"signatures\"] *= 2'"
tamper "no signatures" "edit 'e[\"signatures\"] = []'"
tamper "zeros for the signature" "edit 'e[\"signatures\"][0][\"sig\"] = \"AAAA\"'"
tamper "the signature's numbers exchanged" "edit 'd = base64.b64decode(e[\"signatures\"][0][\"sig\"]); n = 4 + d[3]
e[\"signatures\"][0][\"sig\"] = base64.b64encode(d[:2] + d[n:] + d[2:n]).decode()'"
tamper "a byte after the signature's DER" "edit 'e[\"signatures\"][0][\"sig\"] = base64.b64encode(
    base64.b64decode(e[\"signatures\"][0][\"sig\"]) + b\"x\").decode()'"
tamper "a digest changed in the statement" "edit 'r[0][\"digest\"] = \"0\" * 64'"
tamper "a file changed, its digest in the statement too" "echo >>README.md && edit 'import hashlib
for f in r:
    f[\"digest\"] = hashlib.sha256(open(f[\"name\"], \"rb\").read()).hexdigest()'"
tamper "a file removed, in the statement too" "rm README.md && edit 's[\"predicate\"][\"resources\"] = r[1:]'"
tamper "files in another order" "edit 'r.reverse()'"
tamper "another subject" "edit 's[\"subject\"][0][\"name\"] = \"x\"'"
tamper "white space in the statement" "edit 's[\"x\"] = 1'"
tamper "the payload with line breaks" "edit 'e[\"payload\"] = e[\"payload\"][:76] + \"\\n\" + e[\"payload\"][76:]'"
tamper "the payload in the alphabet of URLs" "edit 'e[\"payload\"] = e[\"payload\"][:4] + \"-_-_\" + e[\"payload\"][8:]'"
tamper "an ignored file, listed" "edit 'r.append({\"name\": \".git/x\", \"digest\": \"0\" * 64, \"algorithm\": \"sha256\"})'"
echo "$refused of $tries kinds of tampering refused"

echo "== tampering with a file"
for change in 'flip bad.fm 9000' 'truncate -s -1 bad.fm' 'echo >>bad.fm' 'rm bad.fm' 'rm bad.fm.sig' 'cp bad/model.sig bad.fm.sig' \
    'rm bad.fm && mkdir bad.fm'; do
    rm -rf bad.fm && cp family.fm bad.fm && cp -f family.fm.sig bad.fm.sig
    eval "$change"
    echo "-- $change"
    try --trusted P-256.pub bad.fm
done
