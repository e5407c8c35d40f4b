"""A task manager's part in rescales: who owns which key groups, and what waits or moves."""
