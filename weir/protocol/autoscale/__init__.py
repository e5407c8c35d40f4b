"""How many subtasks each stage should have: from what was measured to a decision and its reasons. Pure."""
