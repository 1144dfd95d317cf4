#!/usr/bin/env bash
# A few cases of each sweep (tests/sweep/sweep.py): make sweep runs all of them.
set -u
cd "$(dirname "$0")/../.." || exit 1
[ -z "${SAN:-}" ] || { echo "this test preloads a library, which sanitizers do not allow" && exit 77; }
status=0
for name in faults kill disk signals readers flips configs; do
    python3 -B tests/sweep/sweep.py "$name" --cases "${FM_SWEEP_CASES:-60}" || status=1
done
exit $status
