"""The console command ``weir``. Imports neither process: it starts them as ``python -m control_plane`` and the like."""
