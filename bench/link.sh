#!/bin/sh
# Steps that communicate most of the time, measured against what the plan says of the link: a delay and a
# bandwidth that comm injects, ranks as threads; and two processes in network namespaces with a shaped link
# between them, over TCP by Open MPI, where the system allows that, else why not. Exits 1 where a step is more
# than 25 % off. Usage: bench/link.sh [BUILD]
build=$(cd "${1:-build}" && pwd) || exit 1
link=$build/bench/link
failed=0

make -s BUILD="$build" "$link" || exit 1
for mesh in fsdp=4 dp=4 fsdp=2,tp=2; do
    "$link" 0.002 20e6 demo 4 64 $mesh || failed=1
done
"$link" 0.0005 10e6 demo 4 64 fsdp=4 || failed=1

# ---- two namespaces ----

skip() {
    echo "no link between network namespaces: $*"
    exit "$failed"
}

one=tenon-link-$$-1 two=tenon-link-$$-2
dir=$(mktemp -d)
# shellcheck disable=SC2317 # called by trap
end() {
    ip netns del "$one" 2>/dev/null
    ip netns del "$two" 2>/dev/null
    rm -rf "$dir"
}
trap end EXIT
[ -f "$build/tenon-mpi-openmpi.so" ] || skip "the module for Open MPI was not built"
command -v mpirun.openmpi >/dev/null || skip "mpirun.openmpi is not there"
command -v tc >/dev/null || skip "tc is not there"
why=$(ip netns add "$one" 2>&1 && ip netns add "$two" 2>&1 &&
    ip link add eth0 netns "$one" type veth peer name eth0 netns "$two" 2>&1) || skip "$why"
number=1
for space in "$one" "$two"; do
    ip -n "$space" link set lo up
    ip -n "$space" addr add "10.213.7.$number/30" dev eth0
    ip -n "$space" link set eth0 up
    set -- tc qdisc add dev eth0 root
    shape="2 ms and 20 Mbit/s"
    ip netns exec "$space" "$@" netem delay 2ms rate 20mbit 2>/dev/null || {
        shape="20 Mbit/s, without a delay, as there is no netem"
        why=$(ip netns exec "$space" "$@" tbf rate 20mbit burst 16kb latency 100ms 2>&1) || skip "$why"
    }
    number=2
done

echo "between network namespaces, $shape; the link as measured:"

# What mpirun starts its daemon by, as if it were ssh: on a host of another name.
cat >"$dir/agent" <<END
#!/bin/sh
shift
exec ip netns exec $two unshare --uts sh -c "hostname tenon-two; TMPDIR=$dir/two; export TMPDIR; \$*"
END
mkdir "$dir/one" "$dir/two"
chmod +x "$dir/agent"
# Messages go as a whole: with Open MPI's own limits a step took up to 1.5 times as long.
whole="--mca btl_tcp_eager_limit 262144 --mca btl_tcp_max_send_size 262144"
whole="$whole --mca btl_tcp_sndbuf 262144 --mca btl_tcp_rcvbuf 262144"
# shellcheck disable=SC2086 # several words
TMPDIR=$dir/one OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 TENON_MPI=$build/tenon-mpi-openmpi.so \
    ip netns exec "$one" mpirun.openmpi -n 2 --host 10.213.7.1:1,10.213.7.2:1 --bind-to none --mca plm rsh \
    --mca plm_rsh_agent "$dir/agent" --mca pml ob1 $whole --mca btl self,tcp --mca btl_tcp_if_include 10.213.7.0/30 \
    --mca oob_tcp_if_include 10.213.7.0/30 -x TENON_MPI "$link" 0 0 demo 4 64 fsdp=2 3 || failed=1
exit "$failed"
