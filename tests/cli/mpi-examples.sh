# The commands of fm-mpi(7), from the page.  There is one machine instead of the page's eight, so
# mpirun runs without --map-by; Slurm is a stand-in that stops the first run with status 75.
# shellcheck source=tests/ranks.sh
. "$GOLDEN/../tests/ranks.sh"
# shellcheck source=tests/pages.bash
. "$GOLDEN/../tests/pages.bash"
prepare
ln -s "$GOLDEN/odd-qwen2" DIR && cp DIR/tokens.npy FILE
mkdir bin
cat >bin/mpirun <<SCRIPT
#!/bin/bash
for word; do
    shift
    case \$word in --map-by) skip=1 ;; *) [ -n "\$skip" ] || set -- "\$@" "\$word"; skip= ;; esac
done
exec $(command -v "$MPIRUN") "\$@"
SCRIPT
cat >bin/srun <<SCRIPT
#!/bin/sh
[ -e stopped ] || { touch stopped; exit 75; }
while [ "\${1#--}" != "\$1" ]; do shift; done
exec $(command -v "$MPIRUN") -n 2 "\$@"
SCRIPT
printf '#!/bin/sh\necho scontrol "$@"\n' >bin/scontrol
chmod +x bin/*
export PATH=$PWD/bin:$mpi:$PATH SLURM_JOB_ID=17
examples fm-mpi.7
fm-rank -q --model DIR --tokens FILE -o one.fm >/dev/null 2>&1
members one.fm rank.fm
take fm-mpi.7 Slurm >job
bash job
echo "status $?"
bash job >said 2>complained
echo "status $?"
ls -I said -I complained
