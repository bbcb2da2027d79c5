"""From Parquet to gate.json: signals, outcomes, curves, the fit."""
