"""Every experiment of the paper, from one command.

Norcliffe and Deisenroth, "Faster Training of Neural ODEs Using Gauss-Legendre Quadrature", TMLR 2023.

One module per experiment family, each flat: its data, its model, its loss and its metrics as small functions,
a frozen ``Config`` (one run), ``grid`` (which runs a preset consists of) and ``run`` (one run to its result).
Around them: `training` (a resumable loop), `scheduler` (processes or a Ray cluster), `store` (one JSON line
per finished run), `plots` and `report` (from these lines alone).

Nothing is imported here, so that ``quadjoint --help`` stays quick.
"""
