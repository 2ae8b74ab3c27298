"""`petiole check`: looks at one machine's configuration, server, link and clock. Each check gives a sentence,
and a remedy unless all is well.

One module judges each group of checks; it is pure and makes findings of what was seen. `handshake`,
`local_probe`, `leafnode_probe` and `machine` do the looking, each within a bounded time. Nothing is changed:
no file is made, no message stored or delivered, no stream or consumer touched (docs/check.md says how).
"""
