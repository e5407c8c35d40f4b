"""What another control plane needs to take over, and where it is kept."""
