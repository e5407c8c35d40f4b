"""Rules by which the planner changes a graph."""
