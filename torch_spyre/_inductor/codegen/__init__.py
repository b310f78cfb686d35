"""From planned operations to what the back end takes: OpSpec, then bundle."""
