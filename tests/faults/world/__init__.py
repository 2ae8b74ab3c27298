"""A hub, leaves, their links, a load and the jobs, all real, for one case of a fault.

`machine`: an agent with its server, each process of which can be hurt. `tcp_proxy`: between a leaf and the
hub. `devices`: they number what they send; `load`: all of a case. `tables`: the jobs, and what the
tables hold.
`environment`: all of it together; every fault is noted with the trace by which it is proven that it happened.
"""
