"""The checkpoint store: files of state images and manifests at a ``pyarrow.fs`` location."""
