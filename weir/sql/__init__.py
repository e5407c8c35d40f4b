"""SQL over the dataflow API: a text becomes steps of ``weir.Dataflow``. There is no planner and no runtime of its own."""
