"""Questions to running state: what the bytes of states mean, and answers from anything that reads them."""
