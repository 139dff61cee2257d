"""A GPU's compiler without the GPU: kernels are compiled for a named target and never run."""
