# --help and --help=all come from the table that is parsed; the first fits on a screen.
fm-verify --help | tee short
fm-verify --help=all
fm-verify --version
awk 'length > 80 || NR > 24 { print "does not fit: " $0 }' short
