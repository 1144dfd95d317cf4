#!/usr/bin/env bash
# Test the wheel fm-runtime: its list has every file with its length and digest, its platform tag allows
# only systems with the library's symbols, and the same library gives the same bytes.
# tests/judge/runtimejudge.py tests it with pip and Python.
set -u
cd "$(dirname "$0")/../.." || exit 1
lib=$(realpath "${BUILD:-build}/libfm_clip.so.1")
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
export SOURCE_DATE_EPOCH=1700000000 PYTHONDONTWRITEBYTECODE=1
first=$(python3 formats/runtime/wheel.py "$lib" 1.2.3 "$scratch/a") || exit 1
second=$(TZ=Asia/Tokyo python3 formats/runtime/wheel.py "$lib" 1.2.3 "$scratch/b") || exit 1
cmp "$first" "$second" || exit 1
echo 'void f(void) {}' >"$scratch/x.c"
${CC:-cc} -shared -fPIC -nostdlib -o "$scratch/bare.so" "$scratch/x.c" || exit 1
bare=$(python3 formats/runtime/wheel.py "$scratch/bare.so" 1.2.3 "$scratch/c") || exit 1
printf '\267\0' | dd of="$scratch/bare.so" bs=1 seek=18 conv=notrunc status=none # e_machine: AArch64
foreign=$(python3 formats/runtime/wheel.py "$scratch/bare.so" 1.2.3 "$scratch/d") || exit 1
[[ $foreign == *-linux_aarch64.whl ]] || {
    echo "a library for arm64 is in $foreign"
    exit 1
}
python3 - "$first" "$bare" "$lib" <<'END'
import base64, csv, hashlib, io, re, subprocess, sys, zipfile

path, bare, lib = sys.argv[1:]
wheel = zipfile.ZipFile(path)
names = set(wheel.namelist())
info = "fm_runtime-1.2.3.dist-info"
rows = list(csv.reader(io.StringIO(wheel.read(f"{info}/RECORD").decode())))
assert {row[0] for row in rows} == names and len(rows) == len(names), names
for name, digest, size in rows[:-1]:
    data = wheel.read(name)
    want = "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
    assert (digest, int(size)) == (want, len(data)), name
    if name.endswith(".py"):
        compile(data, name, "exec")
need = {"fm_clip/__init__.py", "fm_clip/libfm_clip.so.1", "fm_sglang/models.py", "modeling_fm.py"}
assert need <= names, need - names
assert {entry.date_time for entry in wheel.infolist()} == {(2023, 11, 14, 22, 13, 20)}
tag = re.search(r"Tag: py3-none-(.*)", wheel.read(f"{info}/WHEEL").decode())[1]
assert path.endswith(f"-1.2.3-py3-none-{tag}.whl"), path
assert "-linux_" in bare, bare
said = subprocess.run(["objdump", "-T", lib], check=True, capture_output=True, text=True).stdout
newest = max(int(x) for x in re.findall(r"GLIBC_2\.(\d+)", said))
assert tag.startswith("linux_") or int(tag.split("_")[2]) >= newest, (tag, newest)
END
