"""Check that one hub serves thousands of agents, and that a slow agent does not affect the others.

The real controller runs as a process of its own, on a real API server. Simulated agents, in other processes, each hold
a TCP connection with TLS of their own, with a token that the API server reviews; each has one member of one gang. Then
one member after another fails, and each time the whole gang is stopped and released. In turns with that, gRPC alone
sends all agents messages of the same lengths over the same connections, and reads their answers, twice. Last, two
agents are added that do not read the orders of their rounds.

With more agents than the hub may have connections (three open files each), several share one. With ``--part``, rounds
of a gang of so many of the agents come in turns with those of all, and no agent is slow.

Prints JSON. ``ratio`` is the median time from a fault to the last release, sent and answered, over that of the two bare
broadcasts. ``growth`` has the same of all agents over a part of them. The goals are in ``bench.goals``.
"""
