# The examples of fm(7), from the page: the Makefile and the job of Slurm, on a small model.  Slurm is replaced;
# the commands are word for word those of the page.
# shellcheck source=tests/pages.bash
. "$GOLDEN/../tests/pages.bash"
unset MAKEFLAGS MFLAGS MAKELEVEL # set by `make check`
ln -s "$GOLDEN/odd-mixtral" model
for dir in made queued; do
    mkdir $dir
    cp model/tokens.npy $dir/calib.npy && cp model/tokens.npy $dir/heldout.npy
    take fm.7 Makefile >$dir/Makefile
done
quiet() { # quiet COMMAND...: write its output to a file, print its status
    "$@" >>../said 2>&1
    echo "status $?"
}

echo "-- the Makefile"
cd made || exit 99
quiet make MODEL=../model
make MODEL=../model | sed "s/^make[^:]*: //"
ls . out20

echo "-- a damaged family is not kept"
touch masks.fm
mkdir ../bin && printf '#!/bin/sh\nexit 1\n' >../bin/fm-verify && chmod +x ../bin/fm-verify
PATH=$PWD/../bin:$PATH quiet make MODEL=../model
ls

echo "-- an export that does not verify is replaced"
cat >../bin/fm-verify <<'SCRIPT'
#!/bin/sh
[ "$2" != --against ]
SCRIPT
PATH=$PWD/../bin:$PATH quiet make MODEL=../model
quiet make MODEL=../model
ls

echo "-- the job of Slurm"
cd ../queued || exit 99
# A stand-in for Slurm: srun runs a step, and the first step ends as if it were stopped.
cat >../bin/srun <<'SCRIPT'
#!/bin/sh
[ -e stopped ] || { touch stopped; exit 75; }
exec "$@"
SCRIPT
printf '#!/bin/sh\necho scontrol "$@"\n' >../bin/scontrol
rm ../bin/fm-verify && chmod +x ../bin/*
take fm.7 Slurm >job
export MODEL=../model PATH=$PWD/../bin:$PATH SLURM_JOB_ID=17 SLURM_CPUS_PER_TASK=2
bash job
echo "status $?"
quiet bash job
cmp out20/model.safetensors ../made/out20/model.safetensors
ls
