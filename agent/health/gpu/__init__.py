"""Judge the polled readings of a GPU. Pure: readings of successive polls in, beginnings and ends of faults out.

``readings`` are the values, ``limits`` the thresholds, ``record`` is the state kept per GPU, ``*_rules`` judge one
poll, and ``fold`` turns judgements into notices, each emitted once.
"""
