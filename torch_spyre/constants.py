"""Names that the whole package shares."""

DEVICE_NAME = "spyre"
