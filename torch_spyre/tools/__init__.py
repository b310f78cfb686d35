"""Programs around the device."""
