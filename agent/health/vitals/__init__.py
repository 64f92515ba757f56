"""What the polled readings of a GPU mean. Pure: readings of successive polls in, what begins and what is over out.

``readings`` are the values, ``limits`` the thresholds, ``windows`` count over time, ``record`` is what is remembered of
a GPU, ``rules`` judge one poll, and ``fold`` turns judgements into notices that are told once.
"""
