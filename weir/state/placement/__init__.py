"""Where the state of each key group is, and how it moves between task managers."""
