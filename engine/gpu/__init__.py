"""Steps on an NVIDIA GPU. Nothing here is imported unless the engine runs on one."""
