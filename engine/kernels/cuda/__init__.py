"""Triton kernels. Nothing here is imported unless the engine runs on a GPU."""
