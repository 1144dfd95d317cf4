# --help and --help=all list the options of the table that the tool parses; --help fits on a screen.
fm-rank --help | tee short
fm-rank --help=all
fm-rank --version
awk 'length > 80 || NR > 24 { print "does not fit: " $0 }' short
