# shellcheck shell=bash
# Functions for tests that start ranks.  MPIRUN is the launcher of the MPI that MPI_BUILD was linked
# with.  The variables allow Open MPI to run as root and with more ranks than CPUs; other MPIs ignore
# them.
MPIRUN=${MPIRUN:-mpirun}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_hwloc_base_binding_policy=none

# MPI leaks memory, and its frames cannot be unwound by frame pointers.
if [ -n "${SAN:-}" ]; then
    LSAN_OPTIONS=suppressions=$(dirname "${BASH_SOURCE[0]}")/mpi.supp:print_suppressions=0
    export LSAN_OPTIONS ASAN_OPTIONS=fast_unwind_on_malloc=0:malloc_context_size=12
fi

has_ranks() { # has_ranks FILE: true if it was built and there is a launcher; else prints what to install
    [ -x "$1" ] && command -v "$MPIRUN" >/dev/null && return
    echo "no MPI here: 'make check' tests ranks after 'apt-get install openmpi-bin libopenmpi-dev'" >&2
    return 1
}

# a_rank_of LAUNCHER: print the process ID of one of its ranks; MPICH starts them through a proxy.
a_rank_of() {
    local parent=$1 proxy
    ! proxy=$(pgrep -P "$1" hydra) || parent=$proxy
    pgrep -P "$parent" fm- | shuf -n 1 || true
}

# ---- for the command-line tests of ranks ----

# prepare: set the tools, tokens and options of small runs.  A leaf is 32 sequences of 64 tokens.  A step of
# training has three leaves; one of recovery has two, so that one of three ranks has no work; ranking has
# five batches of one leaf.
# shellcheck disable=SC2034 # the tests use them
prepare() {
    mpi=${MPI_BUILD:-$(dirname "$(command -v fm-rank)")/../mpi}/bin
    has_ranks "$mpi/fm-rank" || exit 77
    export OMPI_MCA_odls_base_sigkill_timeout=0
    python3 -c "import sys
sys.stdout.buffer.write(b''.join((i * i % 89 + i % 7).to_bytes(2, 'little') for i in range(64 * 176)))" >tokens.u16
    common=(-q --model "$GOLDEN/odd-qwen2" --tokens tokens.u16 --seq-len 64 --precision f32 --threads 1)
    rank=(fm-rank "${common[@]}" --batch 32)
    train=(fm-train "${common[@]}" --batch 96 --method learned --budget-step 0.6 --until 0.6 --steps 2)
    exchange=(fm-train "${common[@]}" --method exchange --budget-step 0.3 --until 0.6)
    recover=(fm-recover "${common[@]}" --batch 64 --lora-rank 4 --steps 2 --strategy cross)
}

said() { grep '^fm-' | sed "s/ on $(hostname)/ on HOST/g; s/[0-9a-f]\{32\}/DIGEST/g"; }

ranks() { # ranks N TOOL OPTION...: print the tool's messages and status
    local n=$1 tool=$2 status
    shift 2
    "$MPIRUN" -n "$n" "$mpi/$tool" "$@" >out 2>err
    status=$?
    said <err
    [ $status = 0 ] || echo "$tool: status $status"
}

members() { # members STREAM OTHER: compare all members except build.json
    local list member
    list=$(tar tf "$1") && [ "$list" = "$(tar tf "$2")" ] || return
    for member in $list; do
        [ "$member" = build.json ] || cmp <(tar xOf "$1" "$member") <(tar xOf "$2" "$member") || return
    done
    echo "$2: same"
}
