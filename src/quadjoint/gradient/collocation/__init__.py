"""The Gauss-Legendre adjoint: quadrature nodes that also solve the adjoint equation."""
