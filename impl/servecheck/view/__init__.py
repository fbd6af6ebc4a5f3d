"""Pictures and graphs of a state: who holds which block, what is shared, what is evicted next."""
