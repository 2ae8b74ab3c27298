"""What goes where: the text beside the rendered files. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from agent.cli.site.schema import Topology


def readme(site: Topology, names: Sequence[str]) -> str:
    """The text; `names` are the other files."""
    hub = [name for name in names if name.startswith("hub")]
    lines = [
        "# What goes where",
        "",
        "Written by `petiole render`. No file here holds a private key; those are made on each machine by",
        "`petiole enrol`, which also prints what the topology has to know of a leaf.",
        "",
        "| file | on | as |",
        "|---|---|---|",
        *(f"| `{name}` | {_where(name)} |" for name in names),
        "",
        "## The hub",
        "",
        "```sh",
        "petiole enrol -c /etc/petiole/petiole.toml",
    ]
    if not site.hub.embedded:
        lines += [f"nats-server -c /etc/petiole/{'nats.conf'}"]
    lines += ["petiole run -c /etc/petiole/petiole.toml", "```", ""]
    if len(hub) > 2:
        lines += [
            "`enrol` writes `identity.conf` beside the configuration: copy it, and `cluster.conf`, to each",
            "server of the cluster. Both stand beside that server's `nats.conf`, with mode 0600.",
            "",
        ]
    lines += ["## Each leaf", "", "```sh", "petiole enrol -c /etc/petiole/petiole.toml"]
    if not site.leaves.embedded:
        lines += ["nats-server -c /etc/petiole/nats.conf"]
    lines += [
        "petiole run -c /etc/petiole/petiole.toml",
        "```",
        "",
        "What `enrol` prints goes into the topology (`petiole fleet add`), which is then rendered again.",
        "",
    ]
    waiting = [leaf.domain for leaf in site.leaf if leaf is not None and not leaf.key]
    if waiting:
        lines += ["Not let in, for the topology has no key of them: " + ", ".join(waiting) + ".", ""]
    return "\n".join(lines)


def _where(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    target = "/etc/petiole/nats.conf" if kind == "conf" else "/etc/petiole/petiole.toml"
    if stem == "cluster":
        return "every server of the hub | `/etc/petiole/cluster.conf`, mode 0600"
    if stem == "hub":
        return f"the hub | `{target}`"
    if stem.startswith("hub-"):
        return f"the hub's server {stem.removeprefix('hub-')} | `{target}`"
    return f"leaf {stem.removeprefix('leaf-')} | `{target}`"
