"""Jobs on a server of Spark Connect, by `make test SUITE=connect`."""
