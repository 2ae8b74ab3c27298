"""What the commands ask agents and servers, and how they show it. Only `command_client` changes anything; a
leaf's agent imports none of it."""
