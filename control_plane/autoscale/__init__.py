"""Scales stages of the running job by itself: measures, asks the policy, and begins rescales."""
