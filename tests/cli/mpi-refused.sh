# Ranks: values that must be equal, the failure of one rank, and ranks that are not connected.
# shellcheck source=tests/ranks.sh
. "$GOLDEN/../tests/ranks.sh"
prepare
"${rank[@]}" -o ranked >/dev/null
echo "# what ranks must have in common"
"$MPIRUN" -n 1 "$mpi/fm-train" "${train[@]:1}" -o other ranked : \
    -n 1 "$mpi/fm-train" "${train[@]:1}" --steps 3 -o other ranked 2>err >out
echo "status $?"
said <err
"$MPIRUN" -n 1 "$mpi/fm-train" "${train[@]:1}" -o other ranked : \
    -n 1 "$mpi/fm-train" "${train[@]:1}" --dry-run -o other ranked 2>err >out
said <err
"$MPIRUN" -n 1 "$mpi/fm-train" "${train[@]:1}" -o other : \
    -n 1 "$mpi/fm-train" "${train[@]:1}" -o other ranked <tokens.u16 2>err >out
said <err
for second in "--carry config.json" "--carry config.json --carry *.json" ""; do
    # shellcheck disable=SC2086 # options
    (
        set -f
        "$MPIRUN" -n 1 "$mpi/fm-rank" "${rank[@]:1}" --carry config.json -o other : \
            -n 1 "$mpi/fm-rank" "${rank[@]:1}" $second -o other 2>err >out
    )
    echo "status $?"
    said <err
    rm -f other
done
echo "# the failure of one"
"$MPIRUN" -n 1 "$mpi/fm-rank" "${rank[@]:1}" -o other : \
    -n 1 "$mpi/fm-rank" "${rank[@]:1}" --tokens missing -o other 2>err >out
echo "status $?"
said <err

echo "# many that are not connected"
SLURM_STEP_NUM_TASKS=2 "${rank[@]}" -o other
echo "status $?"
SLURM_STEP_NUM_TASKS=2 "$mpi/fm-rank" "${rank[@]:1}" -o other
echo "status $?"
PMI_SIZE=2 "${rank[@]}" -o other 2>&1 | said
WORLD_SIZE=2 fm-rank "${rank[@]:2}" -f -o other 2>&1 | said | grep -v "fm-rank: rank: " # progress, if it is slow
echo .[!.]*
