"""The control plane's part in checkpoints, savepoints and restores."""
