"""The law: over the same rows in the same order per split a job says the same; steps, models and runs to try it."""
