"""Model signatures that must be refused for their envelope or the statement in it.  The bytes of "sig" are
made up: verification is tested with keys that openssl(1) makes (tests/cli/sign.sh)."""
import base64
import copy
import hashlib
import json
import re

from put import put

STATEMENT = {
    "_type": "https://in-toto.io/Statement/v1",
    "subject": [{"name": "out40", "digest": {"sha256": ""}}],
    "predicateType": "https://model_signing/signature/v1.0",
    "predicate": {
        "resources": [
            {"name": "config.json", "digest": "11" * 32, "algorithm": "sha256"},
            {"name": "model.safetensors", "digest": "22" * 32, "algorithm": "sha256"},
        ],
        "serialization": {"method": "files", "hash_type": "sha256", "allow_symlinks": False,
                          "ignore_paths": [".git", "model.sig"]},
    },
}  # fmt: skip
BUNDLE = {
    "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
    "verificationMaterial": {"publicKey": {"hint": "ab" * 32}, "tlogEntries": []},
    "dsseEnvelope": {
        "payload": "",
        "payloadType": "application/vnd.in-toto+json",
        "signatures": [{"sig": base64.b64encode(b"\x30" * 70).decode(), "keyid": ""}],
    },
}


def signature(name, edit=lambda bundle, statement: None, root=True):
    bundle, statement = copy.deepcopy(BUNDLE), copy.deepcopy(STATEMENT)
    edit(bundle, statement)
    digests = [r.get("digest") for r in statement.get("predicate", {}).get("resources", []) if isinstance(r, dict)]
    if root:
        whole = b"".join(bytes.fromhex(d) for d in digests if isinstance(d, str) and re.fullmatch("[0-9a-f]{64}", d))
        statement["subject"][0]["digest"]["sha256"] = hashlib.sha256(whole).hexdigest()
    envelope = bundle.get("dsseEnvelope")
    if isinstance(envelope, dict) and envelope.get("payload") == "":
        envelope["payload"] = base64.b64encode(json.dumps(statement).encode()).decode()
    put(f"{name}.sig", json.dumps(bundle, indent=1) + "\n")


def at(path, value=None):
    """Set or, without a value, remove the item at a path in the bundle ("b/...") or the statement ("s/...")."""
    def edit(bundle, statement):
        first, *keys = [int(k) if k.isdigit() else k for k in path.split("/")]
        node = bundle if first == "b" else statement
        for key in keys[:-1]:
            node = node[key]
        if value is None:
            del node[keys[-1]]
        else:
            node[keys[-1]] = value
    return edit


def payload(data):
    return at("b/dsseEnvelope/payload", data if isinstance(data, str) else base64.b64encode(data).decode())


def signatures():
    put("good-sg-statement.json", json.dumps(STATEMENT, indent=1) + "\n")  # a seed for tests/fuzz/fuzz_oms.c
    signature("good-sg")
    signature("good-sg-no-hint", at("b/verificationMaterial/publicKey/hint"))
    signature("good-sg-no-keyid", at("b/dsseEnvelope/signatures/0/keyid"))
    signature("good-sg-more-in-the-statement", at("s/predicate/more", 1))
    put("sg-empty.sig", "")
    put("sg-a-list.sig", "[]")
    put("sg-cut.sig", json.dumps(BUNDLE)[:200])
    put("sg-key-twice.sig", json.dumps(BUNDLE).replace("{", '{"mediaType": "x", ', 1))
    signature("sg-media-type-other", at("b/mediaType", "application/vnd.dev.sigstore.bundle.v0.4+json"))
    signature("sg-media-type-absent", at("b/mediaType"))
    signature("sg-member-more", at("b/more", 1))
    signature("sg-material-absent", at("b/verificationMaterial"))
    signature("sg-material-more", at("b/verificationMaterial/more", 1))
    signature("sg-certificate", at("b/verificationMaterial/certificate", {"rawBytes": "AAAA"}))
    signature("sg-key-absent", at("b/verificationMaterial/publicKey"))
    signature("sg-hint-short", at("b/verificationMaterial/publicKey/hint", "ab"))
    signature("sg-hint-long", at("b/verificationMaterial/publicKey/hint", "ab" * 4000))
    signature("sg-hint-capitals", at("b/verificationMaterial/publicKey/hint", "AB" * 32))
    signature("sg-hint-a-number", at("b/verificationMaterial/publicKey/hint", 7))
    signature("sg-log-entry", at("b/verificationMaterial/tlogEntries", [{"logIndex": "1"}]))
    signature("sg-envelope-absent", at("b/dsseEnvelope"))
    signature("sg-envelope-more", at("b/dsseEnvelope/more", 1))
    signature("sg-payload-type-other", at("b/dsseEnvelope/payloadType", "text/plain"))
    signature("sg-no-signatures", at("b/dsseEnvelope/signatures", []))
    signature("sg-signatures-two", lambda b, s: b["dsseEnvelope"]["signatures"].append({"sig": "AAAA"}))
    signature("sg-signature-more", at("b/dsseEnvelope/signatures/0/more", 1))
    signature("sg-keyid-other", at("b/dsseEnvelope/signatures/0/keyid", "k"))
    for name, text in (("absent", None), ("empty", ""), ("number", 5), ("long", "A" * 4000), ("not-base64", "!" * 8),
                       ("without-padding", "AAA"), ("padding-early", "AA==AAAA"), ("space", " AAA"), ("bits-left", "AB=="),
                       ("url-safe", "-_-_"), ("140-bytes", base64.b64encode(b"0" * 140).decode())):  # fmt: skip
        signature(f"sg-sig-{name}", at("b/dsseEnvelope/signatures/0/sig", text))
    signature("sg-payload-absent", at("b/dsseEnvelope/payload"))
    signature("sg-payload-no-base64", payload("...."))
    signature("sg-payload-no-json", payload(b"hello"))
    signature("sg-payload-a-list", payload(b"[1]"))
    signature("sg-payload-nul", payload(b'{"_type": "a\0"}'))
    signature("sg-payload-key-twice", payload(json.dumps(STATEMENT).replace("{", '{"_type": "x", ', 1).encode()))
    signature("sg-type-other", at("s/_type", "https://in-toto.io/Statement/v0.1"))
    signature("sg-predicate-other", at("s/predicateType", "https://model_signing/Digests/v0.1"))
    signature("sg-predicate-absent", at("s/predicate"))
    signature("sg-subjects-two", lambda b, s: s["subject"].append(s["subject"][0]))
    signature("sg-subject-no-name", at("s/subject/0/name"))
    signature("sg-root-other", at("s/subject/0/digest/sha256", "33" * 32), root=False)
    signature("sg-root-absent", at("s/subject/0/digest", {}), root=False)
    signature("sg-shards", at("s/predicate/serialization/method", "shards"))
    signature("sg-blake3", at("s/predicate/serialization/hash_type", "blake3"))
    signature("sg-serialization-absent", at("s/predicate/serialization"))
    signature("sg-no-resources", at("s/predicate/resources", []))
    signature("sg-resources-an-object", at("s/predicate/resources", {"a": 1}))
    signature("sg-resource-a-string", at("s/predicate/resources/0", "config.json"))
    signature("sg-algorithm-other", at("s/predicate/resources/0/algorithm", "blake2b"))
    signature("sg-digest-short", at("s/predicate/resources/0/digest", "11" * 31))
    signature("sg-digest-no-hex", at("s/predicate/resources/0/digest", "zz" * 32))
    signature("sg-digest-absent", at("s/predicate/resources/0/digest"))
    for name, text in (("absent", None), ("empty", ""), ("dot", "."), ("up", "../config.json"), ("up-inside", "a/../../b"),
                       ("root", "/etc/passwd"), ("slash-twice", "a//b"), ("slash-last", "a/"), ("long", "a" * 5000),
                       ("line-feed", "a\nb"), ("turns", "a\u202eb"), ("number", 3)):  # fmt: skip
        signature(f"sg-name-{name}", at("s/predicate/resources/0/name", text))
    signature("sg-name-twice", at("s/predicate/resources/0/name", "model.safetensors"))
