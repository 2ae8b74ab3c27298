"""How nats-server and nats-py behave where Petiole relies on it: leaf nodes, domains, accounts.

No code of the product decides these tests. One that fails after a new version of the server says what to
look at before that version is taken.
"""
