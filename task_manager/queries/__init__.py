"""Questions to the state here: of subtasks as they are now, and of checkpoints."""
