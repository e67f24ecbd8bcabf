"""The numbers of the paper's tables. (Its statements are in `claims`.)

The paper's curves are pictures without numbers; of them only the statements can be compared. Its times come from an
RTX 2080, so ratios are compared, never seconds.
"""

from __future__ import annotations

# Table: effect of C, nested spheres, width 1500, five seeds. C: (seconds, deviation, accuracy, deviation).
SPHERES_C = {
    1e-3: (61.4, 3.0, 79.0, 26.9),
    1e-1: (89.8, 3.1, 95.6, 8.8),
    1e2: (141.0, 2.4, 95.8, 8.4),
    1e5: (141.7, 2.4, 95.8, 8.4),
}
# Table: regular and irregular times, sines, width 1000, five seeds.
SINES_REGULARITY = {
    (10, "regular"): (48.5, 1.3, 0.08, 0.07),
    (10, "merged"): (239.2, 2.9, 0.07, 0.06),
    (50, "regular"): (96.7, 4.9, 0.11, 0.09),
    (50, "merged"): (1880.5, 607.6, 0.09, 0.08),
}
# Table: number of cosines, OU, width 20, five seeds. Cosines: (minutes, deviation, KL, deviation).
OU_COSINES = {
    0: (9.62, 0.09, 0.7555, 0.3230),
    1: (11.34, 0.04, 0.2801, 0.0248),
    5: (12.97, 0.06, 0.0749, 0.0086),
    10: (19.88, 6.23, 0.0650, 0.0074),
    25: (33.13, 0.96, 0.0618, 0.0068),
    50: (51.97, 0.69, 0.0612, 0.0066),
}
