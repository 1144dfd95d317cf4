# --help and --help=all come from the table that is parsed; the first fits on a screen.
fm-bench --help | tee short
fm-bench --help=all
fm-bench --version
awk 'length > 80 || NR > 24 { print "does not fit: " $0 }' short
