"""The doctor behind `petiole check`: looks at one machine's configuration, server, link and clock, and says
of each thing whether it is well, in one sentence, and if it is not, what to do.

One module judges each group of things. These are pure: they take what was seen and give findings. `greet`,
`local`, `dial` and `machine` see it, each within a bounded time. Nothing here changes anything: no file is
made, no message stored or delivered, no stream or consumer touched (docs/check.md says how).
"""
