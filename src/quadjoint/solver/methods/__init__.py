"""Methods that take one step, and their coefficients."""
