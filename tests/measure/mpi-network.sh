#!/usr/bin/env bash
# mpi-network.sh COMMAND...: run `mpirun -n 2 COMMAND...` on this machine, each rank with its own network
# namespace and host name, over a link of RATE (default: 1gbit; tc tbf).
# Needs root, iproute2 and Open MPI.  Prints the bytes sent over the link.  The namespaces are removed
# at the end.
set -eu
rate=${RATE:-1gbit} scratch=$(mktemp -d)
clean() {
    ip netns del fm-a 2>/dev/null || true
    ip netns del fm-b 2>/dev/null || true
    rm -rf "$scratch"
}
trap clean EXIT
ip netns add fm-a
ip netns add fm-b
ip link add fm-va type veth peer name fm-vb
ip link set fm-va netns fm-a
ip link set fm-vb netns fm-b
i=0
for side in a b; do
    i=$((i + 1))
    ip -n fm-$side addr add 10.90.0.$i/24 dev fm-v$side
    ip -n fm-$side link set fm-v$side up
    ip -n fm-$side link set lo up
    ip netns exec fm-$side tc qdisc add dev fm-v$side root tbf rate "$rate" burst 256kb latency 50ms
done
cat >"$scratch/agent" <<'END'
#!/bin/sh
# Used by mpirun in place of ssh: agent HOST COMMAND...
shift
exec ip netns exec fm-b unshare --uts sh -c "hostname fm-b; $*"
END
chmod +x "$scratch/agent"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
cat >"$scratch/run" <<'END'
hostname fm-a
exec mpirun --oversubscribe --bind-to none -H 10.90.0.1,10.90.0.2 -n 2 --mca plm_rsh_agent "$AGENT" \
    --mca btl tcp,self --mca pml ob1 --mca btl_tcp_if_include 10.90.0.0/24 \
    --mca oob_tcp_if_include 10.90.0.0/24 "$@"
END
AGENT=$scratch/agent ip netns exec fm-a unshare --uts bash "$scratch/run" "$@"
for side in a b; do
    echo "fm-$side sent $(ip netns exec fm-$side cat /sys/class/net/fm-v$side/statistics/tx_bytes) bytes"
done
