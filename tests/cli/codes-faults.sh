# Faults of quantised checkpoints, for every form in which codes are stored: one sentence, and no output.
# Accepted, because the format allows them: a scale of zero of NVFP4, a block of zeros; a power of
# two of 0, which is 2^-127; keys of quantization_config that no tool reads; widths that cut a block of
# FP8; and experts of fewer channels, where that is all that config.json says.
export PYTHONDONTWRITEBYTECODE=1
faults=$(dirname "$0")/faults.py
for form in $(python3 "$faults" forms); do
    mkdir "$form"
    (cd "$form" && python3 "$faults" "$GOLDEN" "$form" >said) &
done
wait
for form in $(python3 "$faults" forms); do
    cat "$form/said"
done
