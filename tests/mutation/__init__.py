"""Generic mutants of the fast engine and of the specification, and what notices them."""
