# Every option in --help is in the tool's man page, and vice versa.
for tool in fm-rank fm-train fm-recover fm-pack fm-verify fm-bench fm-family; do
    $tool --help=all | grep -o -e '--[a-z][a-z-]*' | sort -u >help
    grep -o -e '^\.\(It \)\?Fl .*' "$GOLDEN/../man/$tool.1" | grep -o -e ' -[a-z][a-z-]*' |
        sed 's/^ -/--/' | sort -u >page
    echo "$tool: $(wc -l <help) options"
    diff help page
done
