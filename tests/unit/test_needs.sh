#!/usr/bin/env bash
# libfm_clip must not call oneDNN, because signal handlers of the host program would corrupt the data of
# oneDNN's kernels.  So it must not link to that library, nor contain its names or those of our files
# that call it.  Only the tools that sign or check signatures may need libcrypto.
set -u
cd "$(dirname "$0")/../.." || exit 1
build=${BUILD:-build}
lib=$build/libfm_clip.so
bad=0
fail() {
    echo "$lib: $*"
    bad=1
}
needs_of() {
    readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'
}

needs=$(needs_of "$lib")
names=$(nm "$lib" && nm -D "$lib") || fail "nm failed"
grep -q '^libc\.so' <<<"$needs" || fail "no list of the libraries it needs"
grep -q ' fm_clip_forward$' <<<"$names" || fail "no list of names"
grep -iE 'dnnl|mkldnn|gomp|openblas|mkl' <<<"$needs" && fail "needs what it must not"
grep -iE '[ _](dnnl|mkldnn|cblas|omp)_' <<<"$names" && fail "calls what it must not"
grep -aoiE 'lib(dnnl|mkldnn)[a-z.0-9]*' "$lib" && fail "may load what it must not"

signers=$(for tool in bench pack rank recover train verify; do
    needs_of "$build/bin/fm-$tool" | grep -q '^libcrypto\.so' && echo "$tool"
done)
[ "$signers" = verify ] || fail "libcrypto is needed by: ${signers//$'\n'/ }"
exit $bad
