# --help comes from the table that is parsed.
fm-pack --help
fm-pack --version
