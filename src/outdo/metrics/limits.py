"""The thresholds of the doctor's rules. The playbook and the bands of the charts are generated from them."""

from __future__ import annotations

TREND_STEPS = 20  # before a run is called healthy, or a trend is trusted
LEVEL_STEPS = 8  # before a level is trusted
STALL_STEPS = 60  # before a run counts as stalled
Z_STRONG = 4.0  # standard errors of a change that is not noise
Z_WEAK = 2.5  # of one that is probably not

KL_LIMIT = 0.1  # nats per token
KL_CRITICAL = 0.3
KL_STEPS = 5  # the last steps, most of which must exceed the limit
KL_FAST_STEPS = 40  # the limit is exceeded sooner: the rate is too high; later: the policy drifts

ENTROPY_FRACTION = 0.2  # of the initial entropy
ENTROPY_ZERO = 0.004  # below it there is no entropy at all
SOLVED = 0.85  # success above which similar and confident answers are expected

DIVERSITY_FRACTION = 0.6  # of the initial diversity
DIVERSITY_LOW = 0.45  # distinct answers in a group, as a fraction

LENGTH_GROWN = 1.3  # times the initial length
LENGTH_GROWN_MUCH = 1.5  # the reward pays for length itself
SUCCESS_GAIN = 0.03  # that justifies the length

OVERFIT_GAP = 0.3  # training success gained beyond held-out success
MEMORIZED = 0.6  # training success of a memorized set
SUCCESS_DROP = 0.06  # held-out success below its best; true success while the reward rises

NO_SPREAD = 0.9  # fraction of groups without spread
NO_SPREAD_AT_START = 0.8
FULL_REWARD = 0.95  # where the reward is from 0 to 1

REWARD_NOISE = 0.33  # noise of a step's mean reward, in standard deviations of single rewards
ADV_STD_HIGH = 2.0
ADV_STD_LOW = 0.1  # advantages that are hardly different from 0

DISAGREEMENT = 0.02  # of the answers with the same text
DISAGREEMENT_SETS = 3
DRIFT = 0.05  # of the early answers, whose grade is another one later
BROKEN = 0.05  # of the answers
BROKEN_CRITICAL = 0.2

UNMOVED = 0.05  # relative change of entropy and length that counts as none
KL_UNMOVED = 1e-3
CLIP_UNMOVED = 1e-2

CLIP_HIGH = 0.3
RATIO_OFF = 0.1
# Nats per token, the median of the last steps. Of 60 runs of the tiny model those with 2 to 8 updates a step at the
# default's rate had 0.0001 to 0.006, and no single step past 0.035; those with 6 to 32 clipped updates at other rates
# 0.015 to 0.09, and most of them learned. 22 were past 0.12, all but one not clipped, and none of these kept a gain.
STEP_KL_HIGH = 0.12
STEP_KL_STEPS = 10  # the last steps, whose median is taken: single steps differ tenfold
GRAD_GROWN = 5.0
COLLAPSE = 0.5  # of the best success remains

EARLY_ROWS = 4  # the first updates, and the rows after them that must stay low
HALTED_ROWS = 2  # the rows that suffice in a run that the KL guard halted
LOST = 0.25  # of the success before training, that most steps stay below
ENTROPY_GROWN = 1.5  # times the initial entropy: the policy came apart
STUCK_STEPS = 8  # in a row without spread and without a gradient: nothing will change any more
LOST_STEPS = 3  # in a row with metrics that are NaN or infinite: the weights are lost

SWING_STEPS = 30  # before swings can be told from a trend
SWING = 0.15  # of success, or of a reward from 0 to 1; of others twice that share of their level
SWING_Z = 2.0  # standard errors of a swing beyond those that chance alone gives
SWINGS = 4  # turns up or down, at least
CYCLE = 0.5  # correlation with the same curve some steps later

NON_FINITE = 0.1  # of the steps

TRUNCATED = 0.25

OUT_OF_TURNS = 0.25  # of the answers
LOOPING = 0.1
UNUSED = 0.005  # share of answers that call a tool, at most, where none has learned to
IN_USE = 0.15  # share of answers that call a tool before it is given up …
GIVEN_UP = 0.2  # … and of that, what remains
CALLS_FAILED = 0.5  # of the calls
CALLS_FAILED_CRITICAL = 0.9
FEW_CALLS = 0.02  # per answer: how these fail decides nothing
GIVEN_AWAY = 0.5  # of the right answers
WAITED = 0.5  # of a step's time
WAIT_SECONDS = 1.0  # per step, below which a wait is no matter

MISMATCH_KL = 5e-3
MISMATCH_RATIO = 0.2
MISMATCH_LOGP = 0.1

REWARD_RISE = 0.1  # in the reward's own units
TRUTH_FOLLOWS = 0.25  # of the reward's gain, that the true signal gains too
