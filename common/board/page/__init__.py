"""The board as one page, `site/index.html`: made from records, needs no server and no torch."""
