"""The documents as a site, as `make docs` has built it. Not of `make test`, for MkDocs is an extra."""
