"""What happens to the FX graph before it is lowered: vocabulary, and layout-agnostic passes."""
