"""Every experiment of the paper, from one command.

Norcliffe and Deisenroth, "Faster Training of Neural ODEs Using Gauss-Legendre Quadrature", TMLR 2023.

One module per experiment family, each flat: its data, its model, its loss and its metrics as small functions,
a frozen ``Config`` (one run), ``grid`` (which runs a preset consists of) and ``run`` (one run to its result).
Around them: `training` (a resumable loop), `clock` (all methods in turns), `scheduler` (processes or a Ray cluster),
`store` (one JSON line per finished run). From these lines alone: `claims` (the paper's statements, each with its check
and a verdict that knows the noise), `figures` and `report`.

Nothing is imported here, so that ``quadjoint --help`` stays quick.
"""
