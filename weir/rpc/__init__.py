"""Wire contracts (.proto) and the code generated from them; imported only by weir.rpc.wire and the two processes."""
