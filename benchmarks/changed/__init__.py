"""Jobs that are changed and go on from a savepoint: what they tell from scratch, in plain Python. See ``table``."""
