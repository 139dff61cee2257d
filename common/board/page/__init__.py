"""The board as one page, `site/index.html`: drawn from records, works from the disk; no torch."""
