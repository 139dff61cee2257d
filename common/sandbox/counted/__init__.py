"""Count work without doing it: operators by their shapes, kernels by a sample of programs."""
