"""What declared states (``weir.author.states``) are in a running operator: views of tables, for the keys of a batch.

Called by ``weir.KeyedProcess``. A handle reads the states of all keys of a batch at its first use, stands
for that of the current key, and writes back what changed at the end of the batch.
"""
