"""The search for a kernel's fastest configuration on one device."""
