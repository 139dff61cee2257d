"""The fixture of the house's masked layers, which tests/support/ defines."""

from tests.support.masked_layers import told

__all__ = ["told"]
