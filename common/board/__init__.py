"""The leaderboard, made only from records: rankings for a terminal, for Markdown and as plots."""
