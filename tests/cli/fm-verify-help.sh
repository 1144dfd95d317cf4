# --help comes from the table that is parsed.
fm-verify --help
fm-verify --version
