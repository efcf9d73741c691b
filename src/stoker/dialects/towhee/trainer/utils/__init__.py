"""What is done with models beside training them."""
