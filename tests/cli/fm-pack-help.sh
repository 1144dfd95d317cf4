# --help and --help=all list the options of the table that the tool parses; --help fits on a screen.
fm-pack --help | tee short
fm-pack --help=all
fm-pack --version
awk 'length > 80 || NR > 24 { print "does not fit: " $0 }' short
fm-pack --help=most
