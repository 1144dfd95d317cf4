# --help comes from the table that is parsed.
fm-recover --help
fm-recover --version
