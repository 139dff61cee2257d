"""The commands of `study`, one file for each command."""
