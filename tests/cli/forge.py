#!/usr/bin/env python3
"""Forge a bundle: change anything in it, and correct every size, offset and digest.

    forge.py FROM TO CODE

CODE is Python that changes `b`: b.manifest is the tree of the manifest, b.config that of the carried
config.json, b.member a dictionary {name: bytes} of the members except manifest, CHECKSUMS and padding.
Digests and lengths are computed again, so only a reader that checks the meaning of the content finds the
change.
"""
import ctypes
import json
import struct
import sys

CONFIG = "carried/config.json"


class _Hash(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]


_xxh = ctypes.CDLL("libxxhash.so.0").XXH3_128bits
_xxh.restype, _xxh.argtypes = _Hash, [ctypes.c_char_p, ctypes.c_size_t]


def digest(data):
    h = _xxh(data, len(data))
    return f"{h.high:016x}{h.low:016x}"


def header(name, size):
    h = bytearray(512)
    name = name.encode("utf-8", "surrogateescape")
    h[0:len(name)] = name
    h[100:124] = b"000644 \0" + b"000000 \0" * 2
    h[124:148] = b"%011o " % size + b"00000000000 "
    h[156:157] = b"0"
    h[257:265] = b"ustar\00000"
    h[329:345] = b"000000 \0" * 2
    h[148:156] = b" " * 8
    h[148:156] = b"%06o\0 " % sum(h)
    return bytes(h)


def padded(data):
    return data + b"\0" * (-len(data) % 512)


def unpack_safetensors(data):
    """(header as a tree, bytes of the tensors)"""
    n = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8:8 + n]), data[8 + n:]


def pack_safetensors(tree, tensors):
    """Make a file whose header is padded as the tools pad it: tensors begin at a multiple of 4096."""
    text = json.dumps(tree, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % 4096)
    return struct.pack("<Q", len(text)) + text + tensors


def listed(name):
    return not name.startswith(("weights/", ".pad/")) and name not in ("manifest.json", "CHECKSUMS")


class Bundle:
    def __init__(self, path):
        data, at, pad = open(path, "rb").read(), 0, False
        self.member, self.aligned = {}, set()
        while data[at:at + 1] != b"\0":
            name = data[at:at + 100].rstrip(b"\0").decode()
            size = int(data[at + 124:at + 135], 8)
            if pad:
                self.aligned.add(name)
            pad = name.startswith(".pad/")
            if not pad and name != "CHECKSUMS":
                self.member[name] = data[at + 512:at + 512 + size]
            at += 512 + size + -size % 512
        self.manifest = json.loads(self.member.pop("manifest.json"))
        self.config = json.loads(self.member[CONFIG])

    def add_tensor(self, name, dtype, shape, data):
        """Add a tensor and its checksum to the model, and its size to the bytes of all budgets."""
        def put(member, entry, dtype, shape, data, described=None):
            tree, tensors = unpack_safetensors(self.member[member])
            tree[entry] = {"dtype": dtype, "shape": shape,
                           "data_offsets": [len(tensors), len(tensors) + len(data)]}
            if described:
                tree["__metadata__"][entry] = described
            self.member[member] = pack_safetensors(tree, tensors + data)

        put("weights/rest.safetensors", name, dtype, shape, data)
        put("segments.safetensors", "tensor." + name, "U8", [16], bytes.fromhex(digest(data)),
            " ".join([dtype] + [str(n) for n in shape]))
        for budget in self.manifest["budgets"]:
            budget["bytes"] += len(data)

    def poke(self, member, entry, expert=None, experts=1, segments=1):
        """Flip a bit in the last byte of a tensor, or of an expert's part of one, and correct the checksum."""
        def change(name, key, edit):
            tree, data = unpack_safetensors(self.member[name])
            begin, end = tree[key]["data_offsets"]
            piece = bytearray(data[begin:end])
            value = edit(piece)
            self.member[name] = pack_safetensors(tree, data[:begin] + bytes(piece) + data[end:])
            return value

        def flip(piece):
            size = len(piece) // experts
            at = len(piece) if expert is None else (expert + 1) * size
            piece[at - 1] ^= 1
            whole = size // segments if expert is not None else len(piece)
            return bytes.fromhex(digest(bytes(piece[at - whole : at])))

        def store(sum):
            def edit(piece):
                at = len(piece) if expert is None else (expert + 1) * (len(piece) // experts)
                piece[at - 16 : at] = sum

            return edit

        sum = change(member, entry, flip)
        change("segments.safetensors", entry if expert is not None else "tensor." + entry, store(sum))

    def _lay_out(self):
        """Set the manifest's list of members; return [name, bytes] of each."""
        pads, order, entries = 0, [["manifest.json", b""]], []
        for name, data in self.member.items():
            if name in self.aligned:
                order.append([f".pad/{pads:04}", None])
                pads += 1
            order.append([name, data])
        sums = sum(len(name.encode("utf-8", "surrogateescape")) + 35 for name, data in order if data is not None)
        order.append(["CHECKSUMS", b"x" * sums])
        size = 1
        while True:
            at, entries = 0, []
            for part in order:
                name, data = part
                if name == "manifest.json":
                    part[1] = data = b" " * size
                if name.startswith(".pad/"):
                    part[1] = data = b"\0" * (-(at + 1024) % 4096)
                entry = {"name": name, "size": len(data), "offset": at + 512}
                if listed(name):
                    entry["digest"] = digest(data)
                entries.append(entry)
                at += 512 + len(padded(data))
            self.manifest["members"] = entries
            text = (json.dumps(self.manifest, indent=2, ensure_ascii=False) + "\n").encode(
                "utf-8", "surrogateescape")
            if len(text) <= size:
                order[0][1] = text[:-1] + b" " * (size - len(text)) + b"\n"
                return order
            size = len(text)

    def write(self, path):
        if CONFIG in self.member and self.config != json.loads(self.member[CONFIG]):
            self.member[CONFIG] = (json.dumps(self.config, indent=2, ensure_ascii=False)).encode(
                "utf-8", "surrogateescape")
            self.manifest["model"]["config"] = digest(self.member[CONFIG])
        order = self._lay_out()
        order[-1][1] = b"".join(f"{digest(data)}  {name}\n".encode("utf-8", "surrogateescape")
                                for name, data in order[:-1] if not name.startswith(".pad/"))
        with open(path, "wb") as f:
            for name, data in order:
                f.write(header(name, len(data)) + padded(data))
            f.write(b"\0" * 1024)


if __name__ == "__main__":
    b = Bundle(sys.argv[1])
    exec(sys.argv[3])
    b.write(sys.argv[2])
