"""Runs Weir as its users do, in real processes: the demo, and the experiments that measure it."""
