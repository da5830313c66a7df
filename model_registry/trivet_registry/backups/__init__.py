"""A backup of a site is one tar: what its home keeps, and its registry.

    registry.db       the registry as an SQLite file, whatever database the site has
    home/...          settings, keys of bundles, stored answers, models, as they lie in the home
    backup.json       last: what is in it, with the SHA-256 of each file

The registry is read first and the files after it, while nothing is collected from the store: files that come
meanwhile are more than the registry knows, never less. As the registry's form is the same for all databases,
a site may come back on another one.
"""
