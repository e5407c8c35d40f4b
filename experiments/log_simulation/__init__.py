"""Runs the deciding parts of the replicated log in virtual time, among crashes, pauses, losses and cuts of the network.

``python -m experiments.log_simulation --seeds 5000`` looks for a seed with which something acknowledged is lost,
doubled or out of order. The decisions are those that ship (``weir/protocol/log``); storage and streams are lists.
"""
