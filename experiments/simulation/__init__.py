"""Checkpoints and recovery in virtual time: the machines of ``weir.protocol`` in a seeded world of faults."""
