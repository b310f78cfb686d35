"""Names and numbers that the whole package shares."""

DEVICE_NAME = "spyre"
CORES = 32
STICK_BYTES = 128
LX_BYTES = 2 * 1024 * 1024
