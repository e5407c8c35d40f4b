"""What every command and process shares: their start, their end, errors as one line."""
