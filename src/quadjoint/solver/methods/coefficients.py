"""The published numbers behind tableau.py, as nested lists without the zero upper triangle."""

from __future__ import annotations

from collections.abc import Sequence

# name: order, a, b, reference and, for a pair, b_error. Row sums of a give c.
# rk4 is Kutta's 3/8 rule; fehlberg2 is the pair RKF1(2), continued with its second-order solution.
LOW_ORDER: dict[str, tuple[int, Sequence[Sequence[float]], Sequence[float], str, Sequence[float] | None]] = {
    "euler": (1, [[]], [1], "Euler (1768), Institutiones calculi integralis", None),
    "midpoint": (2, [[], [1 / 2]], [0, 1], "Runge (1895), Math. Ann. 46", None),
    "heun2": (2, [[], [1]], [1 / 2, 1 / 2], "Heun (1900), Z. Math. Phys. 45", None),
    "heun3": (3, [[], [1 / 3], [0, 2 / 3]], [1 / 4, 0, 3 / 4], "Heun (1900), Z. Math. Phys. 45", None),
    "rk4": (
        4,
        [[], [1 / 3], [-1 / 3, 1], [1, -1, 1]],
        [1 / 8, 3 / 8, 3 / 8, 1 / 8],
        "Kutta (1901), Z. Math. Phys. 46",
        None,
    ),
    "adaptive_heun": (2, [[], [1]], [1 / 2, 1 / 2], "Heun (1900), Z. Math. Phys. 45", [1 / 2, -1 / 2]),
    "fehlberg2": (
        2,
        [[], [1 / 2], [1 / 256, 255 / 256]],
        [1 / 512, 255 / 256, 1 / 512],
        "Fehlberg (1969), NASA Technical Report R-315",
        [-1 / 512, 0, 1 / 512],
    ),
    "bosh3": (
        3,
        [[], [1 / 2], [0, 3 / 4], [2 / 9, 1 / 3, 4 / 9]],
        [2 / 9, 1 / 3, 4 / 9, 0],
        "Bogacki and Shampine (1989), Appl. Math. Lett. 2",
        [2 / 9 - 7 / 24, 1 / 3 - 1 / 4, 4 / 9 - 1 / 3, -1 / 8],
    ),
}

# Dormand and Prince, A family of embedded Runge-Kutta formulae, J. Comput. Appl. Math. 6 (1980).
DOPRI5_C = [0, 1 / 5, 3 / 10, 4 / 5, 8 / 9, 1, 1]
DOPRI5_A = [
    [],
    [1 / 5],
    [3 / 40, 9 / 40],
    [44 / 45, -56 / 15, 32 / 9],
    [19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729],
    [9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656],
    [35 / 384, 0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84],
]
DOPRI5_B_EMBEDDED = [1951 / 21600, 0, 22642 / 50085, 451 / 720, -12231 / 42400, 649 / 6300, 1 / 60]
# Weights of the fourth-order value in the middle of the step: Shampine, Some practical Runge-Kutta formulas,
# Math. Comp. 46 (1986).
DOPRI5_MIDDLE = [
    6025192743 / 30085553152 / 2,
    0,
    51252292925 / 65400821598 / 2,
    -2691868925 / 45128329728 / 2,
    187940372067 / 1594534317056 / 2,
    -1776094331 / 19743644256 / 2,
    11237099 / 235043384 / 2,
]

# Tsitouras, Runge-Kutta pairs of order 5(4) satisfying only the first column simplifying assumption,
# Comput. Math. Appl. 62 (2011), with the interpolant given there.
TSIT5_C = [0, 0.161, 0.327, 0.9, 0.9800255409045097, 1, 1]
TSIT5_A = [
    [],
    [0.161],
    [-0.008480655492356989, 0.335480655492357],
    [2.8971530571054935, -6.359448489975075, 4.3622954328695815],
    [5.325864828439257, -11.748883564062828, 7.4955393428898365, -0.09249506636175525],
    [5.86145544294642, -12.92096931784711, 8.159367898576159, -0.071584973281401, -0.028269050394068383],
    [0.09646076681806523, 0.01, 0.4798896504144996, 1.379008574103742, -3.290069515436081, 2.324710524099774],
]
TSIT5_B_ERROR = [
    0.0017800110522257714,
    0.0008164344596567469,
    -0.007880878010261995,
    0.1447110071732629,
    -0.5823571654525552,
    0.45808210592918697,
    -1 / 66,
]
TSIT5_DENSE = [
    [1, -2.763706197274826, 2.9132554618219126, -1.0530884977290216],
    [0, 0.1317, -0.2234, 0.1017],
    [0, 3.9302962368947516, -5.941033872131505, 2.490627285651253],
    [0, -12.411077166933676, 30.33818863028232, -16.548102889244902],
    [0, 37.50931341651104, -88.1789048947664, 47.37952196281928],
    [0, -27.896526289197286, 65.09189467479366, -34.87065786149661],
    [0, 1.5, -4, 2.5],
]
