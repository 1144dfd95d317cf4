# --help comes from the table that is parsed.
fm-bench --help
fm-bench --version
