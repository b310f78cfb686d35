"""Names that the whole package shares."""

DEVICE_NAME = "spyre"
DISTRIBUTED_BACKEND_NAME = "spyreccl"
