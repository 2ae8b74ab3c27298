"""The configuration file (TOML): its schema, and reading it with all of its problems at once.

The options of an input are declared by the input's own module and handed in, so that the core knows no input.
"""

from agent.config.files import read_table
from agent.config.load import load, parse, read_struct
from agent.config.schema import (
    Admin,
    Config,
    LeafMember,
    LinkConfig,
    Log,
    MirrorConfig,
    OriginConfig,
    Publish,
    RegistrarConfig,
    Rule,
    SourceConfig,
    StreamClass,
    Transform,
    User,
    aggregates,
    members_digest,
    readers,
    users_digest,
)
from agent.config.server_schema import Nats
from agent.config.values import (
    ConfigError,
    Linger,
    Problem,
    RestAfter,
    Seconds,
    Size,
    SyncInterval,
    listen_address,
)

__all__ = [
    "Admin",
    "Config",
    "ConfigError",
    "LeafMember",
    "Linger",
    "LinkConfig",
    "Log",
    "MirrorConfig",
    "Nats",
    "OriginConfig",
    "Problem",
    "Publish",
    "RegistrarConfig",
    "RestAfter",
    "Rule",
    "Seconds",
    "Size",
    "SourceConfig",
    "StreamClass",
    "SyncInterval",
    "Transform",
    "User",
    "aggregates",
    "listen_address",
    "load",
    "members_digest",
    "parse",
    "read_struct",
    "read_table",
    "readers",
    "users_digest",
]
