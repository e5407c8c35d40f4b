"""How many random cases the tests try: few in each run of the suite, many with ``WEIR_LONG=1``."""

import os

#: ``WEIR_LONG=1 make test``, or of a part of the tests, after a change of what they try.
IS_LONG = os.environ.get("WEIR_LONG") == "1"


def cases(few, many=None):
    """``few``, or in a long run ``many``: numbers, or lists of cases; of numbers by default 30 times as many."""
    return (30 * few if many is None else many) if IS_LONG else few
