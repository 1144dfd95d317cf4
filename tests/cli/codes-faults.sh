# Faults of quantised checkpoints, for every form in which codes are stored: one sentence, and no output.
# Changes that the formats allow are accepted, such as an NVFP4 scale of zero (a block of zeros), an exponent
# byte of 0 (2^-127), an unknown key of quantization_config, and fewer channels if config.json states the
# width, even if it cuts an FP8 block.
faults=$(dirname "$0")/faults.py
for form in $(python3 "$faults" forms); do
    mkdir "$form"
    (cd "$form" && python3 "$faults" "$GOLDEN" "$form" >said) &
done
wait
for form in $(python3 "$faults" forms); do
    cat "$form/said"
done
