#!/usr/bin/env bash
# `make bench-kernels`: measure clipped layers on this machine, which should be otherwise idle.  The
# result goes to tests/measure/kernels.json and its table into tests/measure/RESULTS.md, between the two comment
# lines that mark it.  tests/unit/test_benchpage.c checks the table against the JSON.
set -eu
cd "$(dirname "$0")/../.."
BUILD=${BUILD:-build}
table=$(mktemp)
trap 'rm -f "$table" "$table.md"' EXIT
measure() {
    "$BUILD/bin/fm-bench" kernels --dtype "${FM_BENCH_DTYPE:-f32}" --rows "${FM_BENCH_ROWS:-64,512}" \
        --repeat "${FM_BENCH_REPEAT:-41}" --json
}
measure >tests/measure/kernels.json
python3 - tests/measure/kernels.json >"$table" <<'END'
import json, sys
b = json.load(open(sys.argv[1]))
print(f"H {b['hidden']}, I {b['channels']}, {b['experts']} experts, top-{b['experts_per_token']}, {b['dtype']}: "
      f"{b['bytes'] / 1e6:.0f} MB of weights")
print(f"{b['cpu']}, {b['threads']} threads; libfm_clip: {b['path']}; oneDNN {b['onednn']}")
print(f"read bandwidth {b['read_bytes_per_second'] / 1e9:.1f} GB/s, oneDNN's product "
      f"{b['peak_flops_per_second'] / 1e9:.1f} GFLOP/s\n")
print("| tokens | kernel | removed | ms | GB/s | GFLOP/s | of roofline | speed-up | ideal | error |")
print("| --: | :-- | --: | --: | --: | --: | --: | --: | --: | --: |")
for r in b["rows"]:
    print(f"| {r['tokens']} | {r['kernel']} | {r['removed']:.3f} | {1e3 * r['seconds']:.2f} | "
          f"{r['bytes_per_second'] / 1e9:.1f} | {r['flops_per_second'] / 1e9:.1f} | {r['of_roofline']:.2f} | "
          f"{r['speedup']:.2f} | {r['ideal']:.2f} | " + (f"{r['error']:.1e} |" if "error" in r else "|"))
END
awk -v table="$table" '
    /^<!-- kernels -->$/ { print; while ((getline line < table) > 0) print line; skip = 1 }
    /^<!-- end of kernels -->$/ { skip = 0 }
    !skip && !/^<!-- kernels -->$/
' tests/measure/RESULTS.md >"$table.md"
cat "$table.md" >tests/measure/RESULTS.md
cat "$table"
