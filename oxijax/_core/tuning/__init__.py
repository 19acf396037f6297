"""`oxijax.tune`: which plan of a kernel is the fastest on the GPU that is there.

`calls.py` says what a kernel is launched for, and notes it while a function runs. `variations.py`
has the plans that a call may have, `candidates.py` chooses those that are worth timing, `timing.py`
times them, and `plans.py` keeps the fastest, where the resolver (`_core/launch`) finds it.
"""
