"""The control plane's part in rescales and drains."""
