"""Windows whose rows are kept."""
