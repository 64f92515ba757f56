"""Kill the agent at random steps of restarts, many times, and check the results from outside.

``subjects`` are the pods, ``plans`` draws the moments, ``blows`` injects faults and kills, ``stages`` reports the stage
that a kill has hit, ``witness`` observes everything, ``judging`` finds violations, ``trials`` runs it all.
"""
