"""Wire contracts (.proto) and the code generated from them; imported only by weir.wire and the two processes."""
