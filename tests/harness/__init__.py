"""What several tests start or read, one module for each thing.

`servers`: a hub and leaves with the rendered configurations. `linked_pair` and `watched_link` add a
leaf's agent and the registrar in this process. `agents`: that agent, and a probe of
its stream. `agent_process`: `petiole run` in processes. `registrar` and `fleet`: the leaf's side by
hand. `configured`: servers from configurations written by hand. `wait`: the two ways to wait.
"""
