"""The contiguous range of a store in which key groups lie."""


def group_range(group_start, group_stop):
    """Bounds (start, stop) of all keys of ``group_start <= group < group_stop``, none of which is the last one."""
    return group_start.to_bytes(2, "big"), group_stop.to_bytes(2, "big")
