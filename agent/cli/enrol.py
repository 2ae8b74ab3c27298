"""Implements `petiole enrol`, which makes this machine's keys and prints the public half for `petiole fleet
add`.

For an external server, its keys are written beside it. A link's seed only moves between files of mode 0600.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from agent.base.files import write_private
from agent.base.machine import machine_id, unwritable
from agent.base.nats_server import quoted
from agent.cli.configuration import ConfigFile, end, only_command
from agent.config import Config, ConfigError, load
from agent.config.keys import SeedError, ensure_key, public_key, renew_key, seed_line
from agent.contract import server_name
from agent.leaf.inputs import OPTIONS
from agent.server.setup import IDENTITY, RECEIPT_KEY, identities, key_file, link_key_file, user_link_key_file


def key_files(config: Config) -> dict[str, Path]:
    """Return seed paths by identity."""
    mine = identities(config)
    own = "agent" if config.role == "leaf" else "registrar"
    found = {own: mine.account}
    # An embedded server's other keys are made by its agent.
    if config.nats.server == "external":
        found[f"{own}_system"] = mine.system or key_file(config, f"{own}_system")
        if config.role == "leaf":
            found["device"] = config.nats.device_seed_file or key_file(config, "device")
        else:
            found["jobs"] = config.nats.jobs_seed_file or key_file(config, "jobs")
    found[RECEIPT_KEY] = key_file(config, RECEIPT_KEY)
    if config.role == "leaf":
        found["link"] = link_key_file(config)
        found |= {
            f"link-{user.name}": user_link_key_file(config, user.name) for user in config.user if user.linked
        }
    return found


def enrolled(config: Config, *, new: bool = False, new_receipt: bool = False) -> dict[str, str]:
    """Return public keys by identity, making missing ones; `new` replaces link keys, `new_receipt` the key of
    receipts. Raises `SeedError` or `OSError`.
    """
    files = key_files(config)
    if new_receipt:
        renew_key(files[RECEIPT_KEY])
    if new:
        for path in (path for name, path in files.items() if name.startswith("link")):
            renew_key(path)
    return {name: ensure_key(path) for name, path in files.items()}


def write_identity(config: Config, directory: Path) -> Path:
    """Write the included file with mode 0600 and its directory's owner. Raises `SeedError` or `OSError`."""
    files = key_files(config)
    lines = [
        f"{name.upper()}_KEY: {quoted(public_key(path))}\n"
        for name, path in files.items()
        if not name.startswith(("link", RECEIPT_KEY))
    ]
    if config.role == "leaf":
        lines.insert(0, f"server_name: {quoted(server_name(config.domain, machine_id()))}\n")
        lines += [
            seed_line(f"{name.upper().replace('-', '_')}_KEY", path)
            for name, path in files.items()
            if name.startswith("link")
        ]
    path = directory / IDENTITY
    try:
        above = directory.stat()
        owner = (above.st_uid, above.st_gid) if os.geteuid() == 0 else None
        write_private(path, "".join(lines).encode(), owner=owner)
    except OSError as error:
        raise SeedError(f"{path} cannot be written: {error.strerror}") from None
    return path


ServerDirectory = Annotated[
    Path | None,
    typer.Option(
        "--server-directory",
        help="Where the configuration of a server is that the agent does not run (default: next to this "
        "one); identity.conf is written there.",
        show_default=False,
    ),
]
New = Annotated[
    bool, typer.Option("--new", help="Make another key of the link, in place of one that is to be replaced.")
]
NewReceipt = Annotated[
    bool,
    typer.Option(
        "--new-receipt", help="Make another key of receipts; the agent signs with it once it is restarted."
    ),
]


def command(
    config: ConfigFile,
    server_directory: ServerDirectory = None,
    new: New = False,
    new_receipt: NewReceipt = False,
) -> None:
    """Make the missing keys of this machine, and print the table that lets it in at the hub."""
    with only_command(config):
        _enrol(config, server_directory, new=new, new_receipt=new_receipt)


def _enrol(config: Path, server_directory: Path | None, *, new: bool, new_receipt: bool) -> None:
    try:
        settings = load(config, OPTIONS)
        if new and settings.role != "leaf":
            end(["--new is for the key of a leaf's link; a hub has none"])
        keys = enrolled(settings, new=new, new_receipt=new_receipt)
        identity = None
        if settings.nats.server == "external":
            identity = write_identity(settings, server_directory or config.resolve().parent)
    except ConfigError as error:
        end(error.problems)
    except SeedError as error:
        end([str(error)])
    except OSError as error:
        end([unwritable(settings.state_dir, error)])
    if identity is not None:
        typer.echo(f"# written: {identity}; the server reads it when it is started")
    if settings.role == "leaf":
        typer.echo(_member(settings, keys))
    else:
        typer.echo("# the keys of the hub are there; leaves are let in with [[leaf]] tables")
        typer.echo(f"# receipts of this hub are signed by {keys[RECEIPT_KEY]}")


def _member(settings: Config, keys: Mapping[str, str]) -> str:
    classes = json.dumps(settings.class_names)
    table = f'[[leaf]]\ndomain = "{settings.domain}"\nkey = "{keys["link"]}"\nclasses = {classes}'
    table += f'\nreceipt = ["{keys[RECEIPT_KEY]}"]'
    users = [f'{user.name} = "{keys[f"link-{user.name}"]}"' for user in settings.user if user.linked]
    return f"{table}\nusers = {{ {', '.join(users)} }}" if users else table
