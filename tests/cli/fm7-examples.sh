# The job of Slurm of fm(7), word for word, on a small model.
# shellcheck source=tests/pages.bash
. "$GOLDEN/../tests/pages.bash"
ln -s "$GOLDEN/odd-mixtral" model
cp model/tokens.npy calib.npy && cp model/tokens.npy heldout.npy
# A stand-in for Slurm: srun runs a step, and the first step ends as if it were stopped.  Recovery takes two steps.
mkdir bin
cat >bin/srun <<'SCRIPT'
#!/bin/sh
[ -e stopped ] || { touch stopped; exit 75; }
exec "$@" --steps 2 --method saliency
SCRIPT
printf '#!/bin/sh\necho scontrol "$@"\n' >bin/scontrol
chmod +x bin/*
take fm.7 >job
export MODEL=model PATH=$PWD/bin:$PATH SLURM_JOB_ID=17 SLURM_CPUS_PER_TASK=2
bash job
echo "status $?"
bash job >said 2>&1
echo "status $?"
fm-verify -q out20 --against out20.work/family.fm && ls
