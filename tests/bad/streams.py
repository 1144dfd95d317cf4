"""Streams that must be refused: tr-* tar archives, mf-* manifests, zs-* zstd frames of masks."""
import json
import struct

from checkpoints import LFS
from put import put


def tar_header(name, size, type=b"0", mode=b"000644 \0", zero=b"000000 \0", octal=None, **fields):
    """A ustar header as libarchive writes it; keyword arguments put bytes at an offset: at157=b"x"."""
    h = bytearray(512)
    h[0:len(name)] = name.encode()
    h[100:124] = mode + zero + zero
    h[124:148] = (b"%011o " % size if octal is None else octal) + b"00000000000 "
    h[156:157] = type
    h[257:265] = b"ustar\0" + b"00"
    h[329:345] = zero + zero
    for key, value in fields.items():
        at = int(key[2:])
        h[at:at + len(value)] = value
    h[148:156] = b" " * 8
    h[148:156] = b"%06o\0 " % sum(h)
    return bytes(h)


def padded(data):
    return data + b"\0" * (-len(data) % 512)


def stream(edit=lambda m: None, members=None, head=None, end=b"\0" * 1024, text=None):
    """A stream with one carried file.  Its digests are wrong, but readers find other faults first."""
    files = {"build.json": b"{}\n", "carried/config.json": b"{}\n", "CHECKSUMS": b"x" * 150}
    order = ["build.json", "carried/config.json", "CHECKSUMS"] if members is None else members
    zero = "0" * 32
    size = 1500
    at, entries = 512 + len(padded(b"x" * size)), []
    entries.append({"name": "manifest.json", "size": size, "offset": 512})
    for name in ["build.json", "carried/config.json", "CHECKSUMS"]:
        entries.append({"name": name, "size": len(files[name]), "offset": at + 512, "digest": zero})
        at += 512 + len(padded(files[name]))
    del entries[-1]["digest"]
    manifest = {"schema": 1, "suite": "fm", "stage": "rank", "history": [], "members": entries}
    edit(manifest)
    body = (json.dumps(manifest) if text is None else text).encode()
    body += b" " * (size - len(body))
    out = [tar_header("manifest.json", size) + padded(body)]
    for name in order:
        data = files.get(name, b"")
        h = (head or {}).get(name) or tar_header(name, len(data))
        out.append(h + padded(data))
    return b"".join(out) + end


def tars():
    config = "carried/config.json"

    def one(why, **kw):
        put(f"tr-{why}.fm", stream(head={config: tar_header(config, 3, **kw)}))

    def named(why, name):
        put(f"tr-name-{why}.fm", stream(head={config: tar_header(name, 3)}))

    for why, type in (("hard-link", b"1"), ("symbolic-link", b"2"), ("character-device", b"3"),
                      ("directory", b"5"), ("fifo", b"6"), ("global-pax", b"g"), ("long-name", b"L"),
                      ("long-link", b"K"), ("sparse", b"S"), ("unknown-type", b"Z"),
                      ("old-style-type", b"\0")):
        one(why, type=type)
    for why, name in (("up", "../../etc/x"), ("absolute", "/etc/x"), ("empty", ""),
                      ("double-slash", "a//b"), ("dot", "a/./b"), ("ends-in-slash", "a/"),
                      ("newline", "a\nb"), ("escape", "a\x1b[2J")):
        named(why, name)
    one("setuid", mode=b"006755 \0")
    one("owner", zero=b"001750 \0")
    one("owner-name", at265=b"root")
    one("link-name-of-a-file", at157=b"/etc/passwd")
    one("name-prefix", at345=b"..")
    one("time", at136=b"00000000001 ")
    one("size-base-256", octal=b"\x80" + b"\0" * 10 + b"\3")
    one("size-base-256-negative", octal=b"\xff" * 11 + b"\xfd")
    one("size-led-by-spaces", octal=b"          3 ")
    one("size-8-gib-without-pax", octal=b"100000000000")
    one("size-past-the-end", octal=b"00000100000 ")
    one("gnu-magic", at257=b"ustar  \0")
    wrong = bytearray(tar_header(config, 3))
    wrong[148:156] = b"000001\0 "
    put("tr-checksum.fm", stream(head={config: bytes(wrong)}))
    for why, record in (("size-of-a-small-file", b"9 size=3\n"), ("path", b"11 path=x\n"),
                        ("length-0", b"0 size=3\n"), ("length-too-long", b"99 size=3\n"),
                        ("length-no-digit", b"x size=3\n"), ("size-negative", b"11 size=-3\n"),
                        ("two-records", b"9 size=3\n9 size=4\n")):
        pax = tar_header("PaxHeader/x", len(record), type=b"x") + padded(record)
        put(f"tr-pax-{why}.fm", stream(head={config: pax + tar_header(config, 3)}))
    good = stream()
    put("tr-padding-not-zero.fm", good[:512 + 1500] + b"x" + good[512 + 1501:])
    put("tr-twice.fm", stream(members=["build.json", config, config, "CHECKSUMS"]))
    put("tr-no-end.fm", stream(end=b""))
    put("tr-one-zero-block.fm", stream(end=b"\0" * 512))
    put("tr-byte-behind-the-end.fm", stream(end=b"\0" * 1024 + b"x"))
    put("tr-second-archive.fm", good + good)
    put("tr-odd-length.fm", good[:-1])
    put("tr-zero-block-in-the-middle.fm", stream(head={config: b"\0" * 512}))
    put("tr-cut-in-a-header.fm", good[:2300])
    put("tr-cut-in-padding.fm", good[:2600])
    put("tr-cut-in-data.fm", good[:1000])
    put("tr-cut-at-a-member.fm", stream(members=["build.json", config]))
    put("tr-empty.fm", b"")
    put("tr-git-lfs.fm", LFS)
    put("tr-no-members.fm", b"\0" * 1024)
    put("tr-other-tar.fm", good[2048:])
    put("tr-no-tar.fm", good[2560:])


def manifests():
    def mf(why, edit):
        put(f"mf-{why}.fm", stream(edit))

    def member(why, i, **keys):
        mf(why, lambda m: m["members"][i].update(keys))

    for why, schema in (("0", 0), ("3", 3), ("text", "1"), ("half", 0.5)):
        mf("schema-" + why, lambda m: m.update(schema=schema))
    mf("suite-other", lambda m: m.update(suite="gm"))
    mf("stage-unknown", lambda m: m.update(stage="bake"))
    mf("no-members", lambda m: m.pop("members"))
    mf("member-gone", lambda m: m["members"].pop(2))
    mf("member-more", lambda m: m["members"].append(
        {"name": "masks.zst", "size": 1, "offset": 512, "digest": "0" * 32}))
    mf("members-swapped", lambda m: m["members"].insert(1, m["members"].pop(2)))
    member("member-renamed", 1, name="built.json")
    member("size-off-by-one", 1, size=4)
    member("size-negative", 1, size=-1)
    member("size-2-53", 1, size=2**53)
    member("size-half", 1, size=3.5)
    member("offset-off-by-one", 1, offset=2561)
    member("offset-outside", 1, offset=10**9)
    member("offset-inside-another", 1, offset=600)
    member("digest-short", 1, digest="0" * 31)
    member("digest-long", 1, digest="0" * 33)
    member("digest-upper-case", 1, digest="A" * 32)
    member("digest-not-hex", 1, digest="g" * 32)
    member("digest-number", 1, digest=0)
    member("digest-of-itself", 0, digest="0" * 32)
    mf("digest-missing", lambda m: m["members"][1].pop("digest"))
    put("mf-not-json.fm", stream(text="{"))
    put("mf-array.fm", stream(text="[]"))
    put("mf-key-twice.fm", stream(text='{"schema": 1, "schema": 1}'))
    put("mf-checksums-junk.fm", stream())
    put("mf-manifest-second.fm", tar_header("build.json", 3) + padded(b"{}\n") + stream(
        members=["carried/config.json", "CHECKSUMS"]))
    listed = ["build.json", "carried/config.json", "extra", "CHECKSUMS"]
    put("mf-member-not-listed.fm", stream(members=listed))
    put("mf-member-unknown.fm", stream(add_extra, members=listed))


def add_extra(manifest):
    members = manifest["members"]
    at = members[-1]["offset"]
    members[-1]["offset"] += 512
    members.insert(-1, {"name": "extra", "size": 0, "offset": at, "digest": "0" * 32})


# The widths 128, 256, 384, 512, 128, 256, 384, 512, compressed by zstd -19 --check.
FRAME = bytes.fromhex("28b52ffd2420b500008080000000000100008001000000020000010006994bcbca0c7b")


def frames():
    put("good-zs-eight-widths.zst", FRAME)
    for why, data in (("empty", b""), ("cut", FRAME[:-1]), ("junk-behind", FRAME + b"x"),
                      ("two-frames", FRAME + FRAME), ("magic", b"x" + FRAME[1:]),
                      ("legacy-v0.7", b"\x27" + FRAME[1:]),
                      ("skippable-alone", b"\x50\x2a\x4d\x18\4\0\0\0abcd"),
                      ("skippable-first", b"\x50\x2a\x4d\x18\4\0\0\0abcd" + FRAME),
                      ("skippable-last", FRAME + b"\x50\x2a\x4d\x18\4\0\0\0abcd"),
                      ("checksum", FRAME[:-1] + bytes([FRAME[-1] ^ 1])),
                      ("size-2-62", FRAME[:4] + b"\xe4" + struct.pack("<Q", 2**62) + FRAME[6:]),
                      ("size-31", FRAME[:5] + b"\x1f" + FRAME[6:]),
                      ("no-size", FRAME[:4] + b"\x04\x58" + FRAME[6:]),
                      ("no-checksum", FRAME[:4] + b"\x20" + FRAME[5:-4]),
                      ("dictionary", FRAME[:4] + b"\x25\1" + FRAME[5:]),
                      ("window-2-31", FRAME[:4] + b"\x84\xa8" + struct.pack("<I", 32) + FRAME[6:])):
        put(f"zs-{why}.zst", data)
