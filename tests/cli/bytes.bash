# Sourced by tests that write binary files.

# le BYTES VALUE...: little-endian integers
le() {
    local bytes=$1 value i
    shift
    for value; do
        for ((i = 0; i < bytes; i++)); do printf '%b' "\\0$(printf %o $((value >> 8 * i & 255)))"; done
    done
}
