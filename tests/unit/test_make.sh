#!/usr/bin/env bash
# Test what `make` prints and does by default: it uses all processors unless -j is given, prints one line
# for each file, commands with V=1 and nothing with -s, and the demo builds only what it calls.
# Nothing is compiled: `cc` is a stand-in that makes empty files.
set -u
cd "$(dirname "$0")/../.." || exit 1
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
bad=0
fail() {
    echo "$*"
    bad=1
}
cat >"$scratch/cc" <<'EOF'
#!/bin/sh
for a; do [ "$last" = -o ] && : >"$a"; last=$a; done
exit 0
EOF
chmod +x "$scratch/cc"
# Run make as from a shell that was not started by make.
a_make() {
    env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS make --no-print-directory CUDA=0 CC="$scratch/cc" \
        DNNL_LIBS= BUILD="$scratch/build" "$@" 2>&1
}

# The number of jobs that a make runs at once, as its recipes see it.
cat >"$scratch/jobs.mk" <<'EOF'
include Makefile
jobs:
	@echo $(filter -j%,$(MAKEFLAGS))
above:
	@$(MAKE) --no-print-directory -f $(firstword $(MAKEFILE_LIST)) jobs
EOF
# shellcheck disable=SC2016 # make expands it
printf 'above:\n\t@$(MAKE) --no-print-directory -f %s jobs\n' "$scratch/jobs.mk" >"$scratch/above.mk"
jobs() { # jobs WANTED ARGUMENT...
    local wanted=$1 got
    shift
    got=$(a_make -f "$scratch/jobs.mk" "$@" | tail -n 1)
    [ "$got" = "$wanted" ] || fail "make $*: '$got', not $wanted"
}
cores=-j$(nproc)
jobs "$cores" jobs
jobs "$cores" -s jobs
jobs -j1 -j1 jobs
jobs -j7 -j7 jobs
jobs -j7 -j7 above
jobs "$cores" above
got=$(env -u MAKELEVEL -u MFLAGS MAKEFLAGS=-j3 make --no-print-directory -f "$scratch/jobs.mk" jobs 2>&1)
[ "$got" = -j3 ] || fail "MAKEFLAGS=-j3: '$got'"
got=$(env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS make -f "$scratch/above.mk" above 2>&1)
[ "$got" = "$cores" ] || fail "below another make: '$got'"

a_make all >"$scratch/log" || fail "make: status $?: $(tail -n 3 "$scratch/log")"
for line in 'CC      lib/base/err.c' 'AR      libfm.a' 'LD      bin/fm-rank' 'LD      libfm_clip.so.1'; do
    grep -qx "  $line" "$scratch/log" || fail "make does not say '$line'"
done
grep -vE '^  [A-Z]+ +[^ ]+$' "$scratch/log" >"$scratch/other"
[ "$(cat "$scratch/other")" = "The tools are in $scratch/build/bin" ] ||
    fail "make says more: $(head -n 3 "$scratch/other")"
touch_one() { rm -rf "$scratch"/build/{cmd/fm-rank.c.o,libcli.a,bin/fm-rank}; }
touch_one
a_make V=1 all | grep -q -- '-c -o .*fm-rank.c.o cmd/fm-rank.c' || fail "V=1 shows no command"
touch_one
[ -z "$(a_make -s all)" ] || fail "make -s is not silent"

# What an interactive shell exports does not change the scripts that make runs.
printf 'include Makefile\nscript:\n\t@bash %s\n' "$scratch/script" >"$scratch/script.mk"
echo 'cd tests/.. && pwd' >"$scratch/script"
echo 'exit 3' >"$scratch/startup"
mkdir -p "$scratch/elsewhere/tests"
for shell in SHELLOPTS=noexec SHELLOPTS=verbose BASH_ENV="$scratch/startup" CDPATH="$scratch/elsewhere"; do
    got=$(env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS "$shell" make -s --no-print-directory -f "$scratch/script.mk" script 2>&1)
    [ "$got" = "$PWD" ] || fail "$shell: a script says '$got'"
done

rm -rf "$scratch/build"
a_make -n demo >"$scratch/log" || fail "make -n demo: status $?"
grep -q 'printf.* lib/learn/rank.c' "$scratch/log" || fail "the demo does not build lib/learn/rank.c"
grep -oE 'kernels/clip/|libbench|tests/unit|bin/fm-bench|nvcc' "$scratch/log" && fail "the demo builds too much"
exit $bad
