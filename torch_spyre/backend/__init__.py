"""The back end: from planned steps to the binary program that a card loads."""
