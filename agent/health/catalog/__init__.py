"""The catalog of fault codes: the meaning of each, and the action that it calls for. Pure."""
