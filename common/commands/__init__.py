"""The commands of `study`, one file each."""
