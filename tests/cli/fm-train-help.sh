# --help comes from the table that is parsed.
fm-train --help
fm-train --version
