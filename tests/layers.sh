#!/usr/bin/env bash
# The layers, checked: cmd -> lib -> { formats, kernels } -> lib/base.
# A file of ours is included from the root ("formats/json/json.h"), and only downwards.
set -u
bad=0
allowed() { # layer of the including file -> layers it may include
    case $1 in
    lib/base) echo "lib/base" ;;
    formats) echo "lib/base formats" ;;
    kernels) echo "lib/base kernels" ;;
    lib) echo "lib/base lib formats kernels" ;;
    cmd) echo "lib/base lib cmd" ;;
    tests) echo "lib/base lib formats kernels tests" ;;
    esac
}
layer_of() {
    case $1 in
    lib/base/*) echo lib/base ;;
    */*) echo "${1%%/*}" ;;
    *) echo "?" ;;
    esac
}
count=0
for f in lib/base/*.[ch] formats/*.[ch] kernels/*.[ch] kernels/*.cu kernels/*.cuh lib/*.[ch] cmd/*.[ch] tests/*.[ch] tests/*.cc; do
    [ -e "$f" ] || continue
    count=$((count + 1))
    may=" $(allowed "$(layer_of "$f")") "
    while IFS=: read -r line text; do
        inc=${text#*\"}
        inc=${inc%%\"*}
        to=$(layer_of "$inc")
        case $may in
        *" $to "*) ;;
        *)
            echo "$f:$line: includes \"$inc\": layer '$(layer_of "$f")' may include${may% }" >&2
            bad=1
            ;;
        esac
        case $f in
        kernels/*) ;;
        *)
            case $inc in
            kernels/ops/kernels.h | kernels/clip/clip.h | kernels/clip/clip_gpu.h | kernels/serve/serve.h | kernels/serve/serve_gpu.h | [!k]*) ;;
            *) [ "$(layer_of "$f")" = tests ] || {
                echo "$f:$line: \"$inc\" is private to kernels/; include kernels/ops/kernels.h" >&2
                bad=1
            } ;;
            esac
            ;;
        esac
    done < <(grep -nE '^[[:space:]]*#[[:space:]]*include[[:space:]]*"' "$f")
done
[ "$count" -gt 0 ] || { echo "layers.sh: no source files here; run it from the root" >&2; bad=1; }
exit $bad
