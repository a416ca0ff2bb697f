"""Where each rule draws its line. The playbook is written from these, so that it cannot differ."""

from __future__ import annotations

ENOUGH = 20  # steps before a run is called healthy, or a trend is believed
FEW = 8  # steps before a level is believed
LONG = 60  # steps before "nothing happens" is believed
SURE = 4.0  # errors that a change must be away from nothing
LIKELY = 2.5

KL_LIMIT = 0.1  # a token
KL_CRITICAL = 0.3
KL_STEPS = 5  # the last ones, of which most must be past the limit
KL_FAST = 40  # steps: past the limit sooner than this is too fast a rate rather than a slow drift

ENTROPY_LEFT = 0.2  # of what it was at the start
ENTROPY_NONE = 0.004  # less than this is none at all
SOLVED = 0.85  # success beyond which alike and sure answers are what was asked for

DIVERSITY_LEFT = 0.6  # of what it was at the start
DIVERSITY_LOW = 0.45  # distinct answers in a group, as a share

LONGER = 1.3  # times the length
MUCH_LONGER = 1.5  # length itself is what pays
EARNED = 0.03  # success that pays for the length

GAP = 0.3  # training success gained beyond held-out success
LEARNT = 0.6  # training success of a set that is known by heart
FELL = 0.06  # success below what it was: held-out success below its best, the truth while the reward rises

DEAD = 0.9  # share of groups without spread
DEAD_FROM_START = 0.8
FULL = 0.95  # of the reward, where that is a share: all is paid

NOISY = 0.33  # noise of a step's mean reward, in standard deviations of single rewards
ADV_HUGE = 2.0

DISAGREE = 0.02  # of the answers with the same text
DISAGREE_SETS = 3
BROKEN = 0.05  # of the answers
BROKEN_CRITICAL = 0.2

STILL = 0.05  # relative change of entropy and length that is no movement
KL_STILL = 1e-3
CLIP_STILL = 1e-3

CLIP_BIG = 0.3
RATIO_BIG = 0.1
# Nats a token, the median of the last steps. Of 60 runs of the tiny model those with 2 to 8 updates a step at the
# default's rate had 0.0001 to 0.006, and no single step past 0.035; those with 6 to 32 clipped updates at other rates
# 0.015 to 0.09, and most of them learnt. 22 were past 0.12, all but one not clipped, and none of these kept a gain.
STEP_KL_BIG = 0.12
STEP_KL_STEPS = 10  # the last ones, whose median is taken: single steps differ tenfold
GRAD_GROWN = 5.0
COLLAPSED = 0.5  # of the best success is left

LOST = 0.1  # of the steps

TRUNCATED = 0.25

MISMATCH_KL = 5e-3
MISMATCH_RATIO = 0.2
MISMATCH_LOGP = 0.1

REWARD_UP = 0.1  # in the reward's own units
FOLLOWS = 0.25  # of the reward's gain is the truth's
