# Ranks: two and three ranks give the bytes of one process without MPI, also through a pipe.
# shellcheck source=tests/ranks.sh
. "$GOLDEN/../tests/ranks.sh"
# shellcheck source=tests/cli/least.bash
. "$GOLDEN/../tests/cli/least.bash"
prepare
"${rank[@]}" -o ranked >/dev/null
"${train[@]}" -o trained ranked >/dev/null
"${exchange[@]}" -o exchanged ranked >/dev/null
"${recover[@]}" -o recovered trained >/dev/null
ranks 3 "${rank[@]}" -o ranked3 --json && cp out report
members ranked ranked3
ranks 2 "${rank[@]}" --memory "$(least "${rank[@]}" -o ranked2)" -o ranked2 # layers are reduced one by one
members ranked ranked2
python3 -c "import json
for r in json.load(open('report'))['ranks']:
    print(r['rank'], r['leaves'], r['seconds_computing'] > 0, r['seconds_waiting'] > 0, sorted(r))"
ranks 3 "${train[@]}" -f -o trained3 ranked
members trained trained3
ranks 3 "${exchange[@]}" -o exchanged3 ranked
members exchanged exchanged3
"$MPIRUN" -n 3 "$mpi/fm-recover" "${recover[@]:2}" -o recovered3 trained 2>err >out
said <err | grep warning
"$MPIRUN" -n 3 "$mpi/fm-recover" "${recover[@]:2}" --dry-run trained 2>err | grep ranks
members recovered recovered3
ranks 2 "${recover[@]}" -o recovered2 trained
members recovered recovered2
router=(fm-recover "${common[@]}" --batch 64 --train router --lr 0.02 --steps 2 --strategy cross)
"${router[@]}" -o routed trained >/dev/null
for n in 1 2 3; do
    ranks $n "${router[@]}" -o routed$n trained
    members routed routed$n
done
down=(fm-recover "${common[@]}" --train down)
"${down[@]}" -o solved trained >/dev/null
for n in 1 2 3; do
    ranks $n "${down[@]}" -o solved$n trained
    members solved solved$n
done
down2=("$MPIRUN" -n 2 "$mpi/fm-recover" "${down[@]:1}" -o spilled trained)
"${down2[@]}" --memory "$(least "${down2[@]}")" >/dev/null # rows are in a file
members solved spilled
echo "# a layer for multi-token prediction"
python3 "$(dirname "$0")/mtp.py" make "$GOLDEN" glm4 draft
ahead=(fm-rank -q --model draft --tokens tokens.u16 --seq-len 64 --precision f32 --threads 1 --batch 32 --keep-extra)
"${ahead[@]}" -o ahead >/dev/null
for n in 1 2 3; do
    ranks $n "${ahead[@]}" -o ahead$n
    members ahead ahead$n
done
echo "# a pipe"
mkdir own # two mpirun that start at once would race to create a folder in TMPDIR, and Open MPI's loser fails
"$MPIRUN" -n 2 "$mpi/fm-rank" "${rank[@]:1}" 2>ranking | TMPDIR=$PWD/own ranks 2 "${train[@]}" -o trained2
members trained trained2 || cat ranking
