"""The leaderboard, from records alone: ranked, then shown in a terminal and as Markdown."""
