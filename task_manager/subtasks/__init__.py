"""Subtasks: threads that take input, run operators and send output."""
