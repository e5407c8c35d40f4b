"""Pages and files of ``docs`` that are made from the code; not part of what is installed."""
