"""What a task manager and the control plane tell each other."""
