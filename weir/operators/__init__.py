"""Runtime logic of operators, one file per family; only task managers load it, by way of the registry."""
