"""What a person has to look at in states whose cause the leaf cannot see, as the lines to add on the hub."""

from __future__ import annotations

from agent import contract
from agent.leaf.link.states import LinkState


def hint(state: LinkState, domain: str, cls: str) -> str:
    """The detail of a state's sentence, "" where it needs none."""
    stream = contract.leaf_stream(domain, cls)
    if state is LinkState.UNHEARD:
        return (
            f"publish {contract.deliver_subject(domain, cls, '*')} and $JSC.R.*, subscribe "
            f"{contract.api_prefix(domain)}.CONSUMER.RESET.{stream}.* and $JSC.R.*"
        )
    if state is LinkState.STUCK:
        return f"the hub's user of this leaf needs subscribe $JS.FC.{stream}.>"
    return ""
