"""Tests inputs with real processes: `contract.py` is the suite for all inputs. Needs `pip install
"petiole[testing]"`.

Nothing else of Petiole imports this folder.
"""
