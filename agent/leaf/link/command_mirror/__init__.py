"""The leaf's mirror of its commands: recreated where it would stay behind for good, with the consumers of
local programs."""
