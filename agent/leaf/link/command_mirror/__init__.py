"""The leaf's mirror of its commands: recreated if it would stay behind for good, with the consumers of local
programs."""
