"""How Numba compiles kernels, where they are kept, and what all kernels share."""
