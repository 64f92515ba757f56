"""Parts that the agent and the controller share; nothing here knows about either of them."""
