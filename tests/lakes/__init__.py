"""Lakes in stores other than S3, by `make test SUITE=lakes`."""
