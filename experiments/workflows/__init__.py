"""The workload of a workflow engine, to find out what a state store stands: ``python -m experiments workflows``."""
