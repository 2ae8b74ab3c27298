"""What the commands ask agents and servers, and how they show it. A leaf's agent imports none of
it."""
