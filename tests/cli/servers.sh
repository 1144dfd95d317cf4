# A card has the commands of both servers with the options of its layout, the package for SGLang where the
# layout needs it, and no command for a layout that servers cannot read.
# shellcheck source=tests/cli/family.bash
. "$(dirname "$0")/family.bash"
family saliency --until 0.5
for layout in native ragged elastic layer 'layer --for vllm' uniform padded; do
    # shellcheck disable=SC2086 # several words
    fm-pack -q --export out --force --budget 0.3 --layout $layout family.fm >/dev/null
    echo "== $layout"
    sed -n '/^vLLM:/,/^fm-clients/p; /experts.budget/p' out/README.md
done
