"""The thresholds of the search: what counts as a gain, as shown, and as worth its time.

Gains and worths are log speed-ups: 0.01 is 1 %, and what several measurements show adds up.
"""

import math

# What a set has to gain to be recommended.
WORTH = 0.01  # the price of an edit: each member of a set has to gain as much
LEAST_OF_RISKY = math.log1p(0.03)  # what a member of lower precision has to gain

# How likely that has to be.
ADDS = 0.92  # that a member adds to a set, where the set without it was measured
PROVEN = 0.95  # the same, where the member was measured by itself alone
SURE = 0.025  # a gain is sure that comes out lower with this probability only
MAY_ADD = 0.1  # that an unproven arm adds to the best set, to have a pair with it

# What a measurement has to promise.
LEAST_PROMISE = 0.5 * WORTH  # any at all
FURTHER_GAIN = math.log1p(0.05)  # beside a claim, as most of the program's time is saved by then
LARGE_PART = 0.2  # of the rest of the budget: a proof that takes less may promise less
CLEARLY_FASTER = math.log(1.2)  # a set whose interval begins here is proven before all else

MOST_PAIRS = 10  # of one set: plans look no further ahead
