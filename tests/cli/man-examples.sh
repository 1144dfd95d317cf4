# The EXAMPLES of the man pages, in the order of the pipeline, word for word.
# shellcheck source=tests/pages.bash
. "$GOLDEN/../tests/pages.bash"
ln -s "$GOLDEN" golden
for tool in fm-rank fm-train fm-recover fm-pack fm-verify fm-bench; do
    take "$tool.1" >example.sh
    bash -e example.sh >said 2>complained
    echo "$tool: status $?, $(grep -c "^$tool" example.sh) commands"
    grep -v "$tool: [a-z ]*: [0-9.]* of [0-9]* \|held out\|warning\|^adapter\|^steps\|^masks\|^tokens\|^ranked" complained
done
ls
