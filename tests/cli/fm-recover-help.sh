# --help and --help=all list the options of the table that the tool parses; --help fits on a screen.
fm-recover --help | tee short
fm-recover --help=all
fm-recover --version
awk 'length > 80 || NR > 24 { print "does not fit: " $0 }' short
