# Two runs never share a state file; the lock of a killed run does not block another.
odd=$GOLDEN/odd-mixtral
rank() {
    fm-rank --model "$odd" --tokens "$odd/tokens.npy" --state state -o "$1" >/dev/null
    echo "status $?"
}
exec 9>state.lock
flock -n 9
echo 4711 >&9
rank first
exec 9>&- # killed: the lock file still exists, and no process holds it
rank second
flock state.lock sleep 1 & # a process of a killed job that ends a moment after its launcher
while [ ! -e state.lock ] || flock -n state.lock true; do sleep 0.01; done
rank third
fm-rank -q --model "$odd" --tokens "$odd/tokens.npy" --state no/such/state -o fourth
echo "status $?"
# Another file that has the lock's name stays as it is.
echo "[metadata]" >poetry.lock
fm-rank -q --model "$odd" --tokens "$odd/tokens.npy" --state poetry -o fourth 2>&1
echo "status $?"
cat poetry.lock
ls
