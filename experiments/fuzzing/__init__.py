"""Random and damaged inputs for every entry of Weir: nothing may crash, hang or grow, and each error is a clear one."""
