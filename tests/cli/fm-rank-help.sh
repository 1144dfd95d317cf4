# --help comes from the table that is parsed.
fm-rank --help
fm-rank --version
