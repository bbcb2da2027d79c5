"""From a game to Parquet: games, the environment, engines, the rollout loop and the store."""
