"""How far event time has come."""
