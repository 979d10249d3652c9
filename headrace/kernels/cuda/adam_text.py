"""Adam's step as the text of two CUDA kernels: `add_up`, which adds the parts of a gradient, and `step`."""

PARAMETERS, SLICES = 32, 8  # of a block of add_up: a thread adds a slice of a parameter's parts
THREADS = PARAMETERS * SLICES

ADAM = f'''
PARAMETERS, SLICES = U64({PARAMETERS}), U64({SLICES})


@cuda.jit(cache=True)
def add_up(partial, gradient, squares, sums, totals, minibatch, steps, skip, most_divergence):
    """gradient [P]: the sum of partial [W, P] over W; squares: that of its squares in each block. The first block adds
    sums [W, 5] to totals[minibatch], and counts the step, unless it is to be left out: skip[0] becomes 1 where the
    divergence, the last of the sums, is above most_divergence."""
    shared = cuda.shared.array({THREADS}, F32)
    thread, block = U64(cuda.threadIdx.x), U64(cuda.blockIdx.x)
    own, part = thread % PARAMETERS, thread // PARAMETERS
    p, workers = block * PARAMETERS + own, U64(partial.shape[0])
    total = F32(0.0)
    if p < U64(gradient.shape[0]):
        w = part
        while w < workers:
            total += partial[w, p]
            w += SLICES
    shared[thread] = total
    cuda.syncthreads()
    if part == U64(0):
        total = F32(0.0)
        for k in range(SLICES):
            total += shared[U64(k) * PARAMETERS + own]
        shared[own] = total * total
        if p < U64(gradient.shape[0]):
            gradient[p] = total
    cuda.syncthreads()
    if thread == U64(0):
        total = F32(0.0)
        for k in range(PARAMETERS):
            total += shared[U64(k)]
        squares[block] = total
    if block == U64(0) and thread < U64(sums.shape[1]):
        total = F32(0.0)
        for w in range(workers):
            total += sums[U64(w), thread]
        totals[U64(minibatch), thread] = total
        if thread == U64(sums.shape[1]) - U64(1):
            if total > most_divergence:
                skip[U64(0)] = F32(1.0)
            steps[U64(0)] += F32(1.0) - skip[U64(0)]


@cuda.jit(cache=True)
def step(weights, gradient, mean, square, squares, max_norm, learning_rate, eps, beta1, beta2, steps, skip):
    """As headrace.algorithms.adam.Adam.step(), `steps` counting this one already."""
    shared = cuda.shared.array({THREADS}, F32)
    thread = U64(cuda.threadIdx.x)
    total, k = F32(0.0), thread
    while k < U64(squares.shape[0]):
        total += squares[k]
        k += U64({THREADS})
    shared[thread] = total
    cuda.syncthreads()
    half = U64({THREADS // 2})
    while half > U64(0):
        if thread < half:
            shared[thread] += shared[thread + half]
        cuda.syncthreads()
        half //= U64(2)
    p = U64(cuda.grid(1))
    if p < U64(weights.shape[0]) and skip[U64(0)] == F32(0.0):
        divisor = max(F32(math.sqrt(shared[0])) / max_norm, F32(1.0))
        g = gradient[p] / divisor
        m = mean[p] + (F32(1.0) - beta1) * (g - mean[p])
        v = beta2 * square[p] + (F32(1.0) - beta2) * g * g
        mean[p], square[p] = m, v
        unbiased1 = -F32(math.expm1(steps[U64(0)] * F32(math.log(beta1))))
        unbiased2 = -F32(math.expm1(steps[U64(0)] * F32(math.log(beta2))))
        weights[p] -= learning_rate[U64(0)] / unbiased1 * m / (F32(math.sqrt(v / unbiased2)) + eps)
'''
