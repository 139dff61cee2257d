"""The leaderboard, drawn from records alone: rankings for a terminal, for Markdown and as plots."""
