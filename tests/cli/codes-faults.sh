# Faults of quantised checkpoints, for every form in which codes are stored: one sentence, and no output.
# Accepted, because the formats allow them: an NVFP4 scale of zero, which is a block of zeros; an exponent
# byte of 0, which is 2^-127; keys of quantization_config that no tool reads; widths that cut an FP8 block;
# and experts with fewer channels, if config.json states that width.
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
