# The texts of --help and --help=all; --help fits on a screen of 24 lines of 80 columns.
fm-pack --help | tee short
fm-pack --help=all
fm-pack --version
awk 'length > 80 || NR > 24 { print "does not fit: " $0 }' short
fm-pack --help=most
