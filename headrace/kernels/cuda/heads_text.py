"""Actions of a policy as the text of CUDA device functions: draw() for acting, and learn_action() for its gradient.

A thread takes a row r. What the actor's last layer computes is in shared memory from entry OUT on, as layers_text says.
"""

from __future__ import annotations

CATEGORICAL = '''
@cuda.jit(device=True)
def _totals(acts, r):
    """The largest logit, and the logarithm of the sum of exp(logit - largest)."""
    largest = acts[OUT * PITCH + r]
    for k in range(U64(1), CHOICES):
        largest = max(largest, acts[(OUT + U64(k)) * PITCH + r])
    total = F32(0.0)
    for k in range(CHOICES):
        total += F32(math.exp(acts[(OUT + U64(k)) * PITCH + r] - largest))
    return largest, F32(math.log(total))


@cuda.jit(device=True)
def draw(acts, r, weights, spread, random, t, n, sampled, action, row):
    """Write an action; its log-probability. The first choice whose cumulated probability is above the draw."""
    largest, log_total = _totals(acts, r)
    chosen = U64(0)
    if sampled:
        total = F32(0.0)
        for k in range(CHOICES):
            total += F32(math.exp(acts[(OUT + U64(k)) * PITCH + r] - largest - log_total))
        bar, cumulated = random[t, U64(0), n] * total, F32(0.0)
        for k in range(CHOICES - U64(1)):
            cumulated += F32(math.exp(acts[(OUT + U64(k)) * PITCH + r] - largest - log_total))
            if cumulated <= bar:
                chosen = U64(k) + U64(1)
    else:
        for k in range(U64(1), CHOICES):
            if acts[(OUT + U64(k)) * PITCH + r] > acts[(OUT + chosen) * PITCH + r]:
                chosen = U64(k)
    action[U64(0), row] = I32(chosen) + START
    return acts[(OUT + chosen) * PITCH + r] - largest - log_total


@cuda.jit(device=True)
def evaluate(acts, r, weights, spread, action, row):
    """Log-probability of an action, and the entropy."""
    largest, log_total = _totals(acts, r)
    entropy = F32(0.0)
    for k in range(CHOICES):
        log_prob = acts[(OUT + U64(k)) * PITCH + r] - largest - log_total
        entropy -= F32(math.exp(log_prob)) * log_prob
    chosen = U64(action[U64(0), row] - START)
    return acts[(OUT + chosen) * PITCH + r] - largest - log_total, entropy


@cuda.jit(device=True)
def learn_action(acts, r, weights, spread, action, row, by_log_prob, by_entropy, entropy):
    """In place of the logits: their gradient, from that of the loss by log-probability and by entropy."""
    largest, log_total = _totals(acts, r)
    chosen = U64(action[U64(0), row] - START)
    for k in range(CHOICES):
        place = (OUT + U64(k)) * PITCH + r
        log_prob = acts[place] - largest - log_total
        probability = F32(math.exp(log_prob))
        own = F32(1.0) if U64(k) == chosen else F32(0.0)
        acts[place] = by_log_prob * (own - probability) - by_entropy * probability * (log_prob + entropy)
'''

GAUSSIAN = '''
LOG_2PI = F32(1.8378770664093453)
TWO_PI = F32(6.283185307179586)
PAIRS = (CHOICES + U64(1)) // U64(2)


@cuda.jit(device=True)
def draw(acts, r, weights, spread, random, t, n, sampled, action, row):
    """Write an action; its log-density. spread: center and half of the range of each dimension, [2, K]."""
    log_prob = F32(-0.5) * LOG_2PI * F32(CHOICES)
    for k in range(CHOICES):
        k = U64(k)
        log_std = weights[LOG_STD + k]
        x = F32(0.0)
        if sampled:
            pair = k if k < PAIRS else k - PAIRS
            radius = F32(math.sqrt(F32(-2.0) * F32(math.log1p(-random[t, pair, n]))))
            angle = random[t, PAIRS + pair, n] * TWO_PI
            x = radius * (cos(angle) if k < PAIRS else sin(angle))
        mean = spread[U64(0), k] + acts[(OUT + k) * PITCH + r] * spread[U64(1), k]
        action[k, row] = mean + x * (F32(math.exp(log_std)) * spread[U64(1), k])
        log_prob -= F32(0.5) * x * x + log_std + F32(math.log(spread[U64(1), k]))
    return log_prob


@cuda.jit(device=True)
def _distance(acts, r, weights, spread, action, row, k):
    """From the mean of dimension k, in standard deviations."""
    mean = spread[U64(0), k] + acts[(OUT + k) * PITCH + r] * spread[U64(1), k]
    return (action[k, row] - mean) * F32(math.exp(-weights[LOG_STD + k])) / spread[U64(1), k]


@cuda.jit(device=True)
def evaluate(acts, r, weights, spread, action, row):
    """Log-density of an action, and the entropy."""
    log_prob, entropy = F32(-0.5) * LOG_2PI * F32(CHOICES), F32(0.5) * (F32(1.0) + LOG_2PI) * F32(CHOICES)
    for k in range(CHOICES):
        k = U64(k)
        x = _distance(acts, r, weights, spread, action, row, k)
        log_std = weights[LOG_STD + k] + F32(math.log(spread[U64(1), k]))
        log_prob -= F32(0.5) * x * x + log_std
        entropy += log_std
    return log_prob, entropy


@cuda.jit(device=True)
def learn_action(acts, r, weights, spread, action, row, by_log_prob, by_entropy, entropy):
    """In place of the means: their gradient, from that of the loss by log-density and by entropy; and from entry
    SPARE on that of the logarithms of the standard deviations."""
    for k in range(CHOICES):
        k = U64(k)
        x = _distance(acts, r, weights, spread, action, row, k)
        acts[(OUT + k) * PITCH + r] = by_log_prob * x * F32(math.exp(-weights[LOG_STD + k]))
        acts[(SPARE + k) * PITCH + r] = by_log_prob * (x * x - F32(1.0)) + by_entropy
'''
