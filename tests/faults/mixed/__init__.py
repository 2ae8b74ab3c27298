"""Faults that meet: each round draws two faults that overlap, the moment at which they meet, and what flows
meanwhile; the oracle judges it down to the tables.

    make faults CASE=mixed ROUNDS=20 SEED=100      # rounds 100 to 119
    make faults CASE=mixed ROUNDS=1 SEED=117       # that round again

`dimensions`: what is drawn, and which values exclude each other. `covering`: the order in which rounds are
drawn, so that any two values of two dimensions meet soon. `faults`: how each is made and mended.
`senders`: who sends. `surroundings`: the environment of a round. `rounds`: one round, from its first reading
over the moment at which the faults meet to the verdict.

A round follows from its number, its seed, alone; what the machine decides is when exactly processes run.
"""
