//! What runs on the host: processes, services, serving flags, GPUs, memory.
