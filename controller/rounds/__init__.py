"""The round as a state machine. Pure: a round, an event and the time in, the next round and its effects out."""
