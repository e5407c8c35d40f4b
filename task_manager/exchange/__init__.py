"""Rows between subtasks: channels, credit, and the one link to each other task manager."""
