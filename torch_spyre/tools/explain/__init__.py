"""What happened to a model on its way to the card, and what a call of it costs there."""
