"""The paper's family: the adjoint equation solved backwards in time."""
