# The texts of --help and --help=all; --help fits on a screen of 24 lines of 80 columns.
fm-train --help | tee short
fm-train --help=all
fm-train --version
awk 'length > 80 || NR > 24 { print "does not fit: " $0 }' short
