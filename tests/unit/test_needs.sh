#!/usr/bin/env bash
# libfm_clip calls no oneDNN, whose kernels a host's signal handlers would destroy: it needs no such
# library, has no such name in it, nor those of our own files that call it.  Of the tools only those
# that sign or check signatures need libcrypto.
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
[ "$signers" = $'pack\nverify' ] || fail "libcrypto is needed by: ${signers//$'\n'/ }"
exit $bad
