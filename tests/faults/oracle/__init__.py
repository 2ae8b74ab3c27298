"""What must be true after a fault, decided from what was sent and what was found. Pure.

`numbered`: every reading of the load has a number, and its contents follow from it. `journal`: what was sent
and what was acknowledged, at which level. `evidence`: what the tables hold and what the product said of
itself. `judge`: both together to a `Verdict`, a sentence for each way in which the promise was broken.
"""
