"""Operations on the card: the table of what it computes, eager planning, and the CPU fallback."""
