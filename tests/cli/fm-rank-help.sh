# The texts of --help and --help=all; --help fits on a screen of 24 lines of 80 columns.
fm-rank --help | tee short
fm-rank --help=all
fm-rank --version
awk 'length > 80 || NR > 24 { print "does not fit: " $0 }' short
