"""Which key groups a subtask owns, and the state that goes with them."""
