"""Jobs in the calling process: ``weir.run``, and what ``weir.testing`` builds on."""
