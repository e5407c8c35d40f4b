"""Sources that authors write."""
