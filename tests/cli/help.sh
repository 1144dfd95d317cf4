# The texts of --help and --help=all; --help fits on a screen of 24 lines of 80 columns.
for tool in fm-rank fm-train fm-recover fm-pack fm-verify fm-bench fm-family; do
    echo "== $tool"
    $tool --help | tee short
    $tool --help=all
    $tool --version
    awk 'length > 80 || NR > 24 { print "does not fit: " $0 }' short
done
fm-pack --help=most
