"""Executes subtasks: operators, channels, keyed state. Started with ``python -m task_manager``."""
