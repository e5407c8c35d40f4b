"""Files and folders, their splits and positions."""
