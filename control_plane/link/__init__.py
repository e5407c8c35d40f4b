"""The connections to task managers."""
