"""SQL over the dataflow API: a text becomes steps of ``weir.Dataflow``, without a planner or a runtime of its own."""
