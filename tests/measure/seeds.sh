#!/bin/sh
# Run the methods on tiny-mixtral, and print their held-out loss at four budgets over several seeds, and
# which of the claims about them hold.  The seed determines the order of the calibration text, the noise
# of training and the initial adapter; the model and the held-out text are always the same.
#
# usage: tests/measure/seeds.sh [-d DIR] [-T THREADS] [SEED ...]     after make; seeds 0 1 2
#
# Streams and reports go to DIR (build/seeds).  Existing files are not made again, so an interrupted
# study can be resumed and seeds can be added.  Remove DIR after changing a method.
set -eu
LC_ALL=C
export LC_ALL
cd "$(dirname "$0")/../.."
dir=build/seeds
threads=
while getopts d:T: option; do
    case $option in
    d) dir=$OPTARG ;;
    T) threads=$OPTARG ;;
    *) exit 64 ;;
    esac
done
shift $((OPTIND - 1))
[ $# -gt 0 ] || set -- 0 1 2
model=golden/tiny-mixtral
PATH=$PWD/build/bin:$PATH
mkdir -p "$dir"

# stage NAME SEED TOOL INPUT OPTION...: make the stream DIR/NAME-SEED and its report, .json, from the
# stream DIR/INPUT-SEED (-: no input).
stage() {
    to=$dir/$1-$2
    seed=$2
    tool=$3
    [ "$4" = - ] && from= || from=$dir/$4-$seed
    shift 4
    [ -s "$to.json" ] || "$tool" --model "$model" --tokens "$model/calib.npy" --seq-len 128 \
        --eval-tokens "$model/heldout.npy" \
        --shuffle --seed "$seed" ${threads:+-T "$threads"} --precision f32 --quiet --json \
        "$@" ${from:+"$from"} >"$to" 2>"$to.part" && mv "$to.part" "$to.json"
}

for s; do
    stage rank "$s" fm-rank -
    stage original "$s" fm-rank - --order original
    stage ranked-uniform "$s" fm-train rank --method uniform --budget-step 0.2
    stage unranked-uniform "$s" fm-train original --method uniform --budget-step 0.2
    stage saliency "$s" fm-train rank --method saliency
    stage learned "$s" fm-train rank --method learned
    stage recovered "$s" fm-recover learned --budget 0.40
done

# Print lines "NAME SEED LOSS LOSS LOSS LOSS": losses are interpolated linearly between two masks; past
# the last mask, its loss is used.  Of the two losses that fm-recover reports, the one after recovery is used.
losses() {
    for name in unranked-uniform ranked-uniform saliency learned recovered; do
        for s; do
            awk -v name="$name" -v seed="$s" -F '[:,]' '
                /^ *"budget":/ && n { rho[n] = $2 }
                /^ *"index":/ { n++ }
                /^ *"ce":/ { ce[n] = $2 }
                END {
                    line = name " " seed
                    for (at = 0.2; at < 0.9; at += 0.2) {
                        for (i = 2; i < n && rho[i] < at;)
                            i++
                        share = (at - rho[i - 1]) / (rho[i] - rho[i - 1])
                        if (share > 1)
                            share = 1
                        line = line " " ce[i - 1] + share * (ce[i] - ce[i - 1])
                    }
                    print line
                }' CONVFMT=%.6f "$dir/$name-$s.json"
        done
    done
}

losses "$@" | tee "$dir/losses" | awk '
    function claim(better, worse, from, to,    b, s, wins, sum) {
        printf "%-16s below %-17s", better, worse
        for (b = 1; b <= 4; b++) {
            if (b < from || b > to) {
                printf "%16s", ""
                continue
            }
            wins = sum = 0
            for (s in seeds) {
                wins += loss[better, s, b] < loss[worse, s, b]
                sum += loss[worse, s, b] - loss[better, s, b]
            }
            printf "   %+.4f %d of %d", sum / count, wins, count
        }
        print ""
    }
    {
        if (!($1 in known)) {
            known[$1] = 1
            name[++names] = $1
        }
        if (!($2 in seeds)) {
            seeds[$2] = 1
            count++
        }
        for (b = 1; b <= 4; b++)
            loss[$1, $2, b] = $(b + 2)
    }
    END {
        printf "held-out cross-entropy, mean and maximum minus minimum of %d seeds\n", count
        printf "%-20s%19s%16s%16s%16s\n", "budget", "0.2", "0.4", "0.6", "0.8"
        for (i = 1; i <= names; i++) {
            printf "%-24s", name[i]
            for (b = 1; b <= 4; b++) {
                sum = 0
                low = 1e9
                high = -1e9
                for (s in seeds) {
                    x = loss[name[i], s, b]
                    sum += x
                    low = x < low ? x : low
                    high = x > high ? x : high
                }
                printf "   %.4f %.4f", sum / count, high - low
            }
            print ""
        }
        print "\nmean difference, and the number of seeds in which the claim holds"
        claim("ranked-uniform", "unranked-uniform", 1, 4)
        claim("learned", "ranked-uniform", 1, 4)
        claim("learned", "saliency", 1, 4)
        claim("recovered", "learned", 1, 4)
    }'
