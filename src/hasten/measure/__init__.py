"""How fast, how much memory and energy, how good."""
