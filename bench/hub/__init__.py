"""Check that one hub serves thousands of agents, and that a slow agent does not affect the others.

The real controller runs as a process of its own, on a real API server. Simulated agents, in other processes, each hold
a TCP connection with TLS of their own, with a token that the API server reviews; each has one member of one gang. Then
one member after another fails, and each time the whole gang is stopped and released. Last, two agents are added that do
not read the orders of their rounds.

Prints JSON. Goals with 5000 agents on 2 cores: connected in less than 60 s; fault to last release, sent and answered,
p99 at most 1000 ms; at most 5 API writes from fault to release.
"""
