"""Kill the agent at a random step of restarts, again and again, and look from outside at what has become of them.

``subjects`` are the pods, ``plans`` draws the moments, ``blows`` injects faults and kills, ``stages`` tells what a kill
has hit, ``witness`` sees everything that happens, ``judging`` says what is wrong, ``trials`` runs it all.
"""
