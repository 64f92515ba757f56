"""``kubemend doctor``: does everything that the agent needs work on this node, and if not, what mends it.

``examine`` looks at all of it at once, each thing with a deadline of its own; ``rendering`` says what was found. One
module per thing looked at. Nothing here is needed by the agent, and nothing here changes the node.
"""
