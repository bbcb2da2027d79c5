"""From gate.json to a trained adapter."""
