"""The operations of a graph in C99, as functions over one observation. PREFIX stands for the name of the policy."""

from __future__ import annotations

FUNCTIONS = {  # in the order in which they are written
    "dense": """
static inline void PREFIX_dense(const float *weight, const float *bias, int inputs, int outputs,
                                const float *x, float *y) {
    for (int i = 0; i < outputs; i++) {
        float sum = 0.0f;
        for (int k = 0; k < inputs; k++) sum += weight[i * inputs + k] * x[k];
        y[i] = sum + bias[i];
    }
}
""",
    "normalize": """
static inline void PREFIX_normalize(const float *center, const float *scale, float limit, int size,
                                    const float *x, float *y) {
    for (int i = 0; i < size; i++) y[i] = fminf(fmaxf((x[i] - center[i]) * scale[i], -limit), limit);
}
""",
    "layer_norm": """
static inline void PREFIX_layer_norm(const float *weight, const float *bias, float epsilon, int size,
                                     const float *x, float *y) {
    float mean = 0.0f, variance = 0.0f;
    for (int i = 0; i < size; i++) mean += x[i] / (float)size;
    for (int i = 0; i < size; i++) variance += (x[i] - mean) * (x[i] - mean) / (float)size;
    for (int i = 0; i < size; i++) y[i] = (x[i] - mean) / sqrtf(variance + epsilon) * weight[i] + bias[i];
}
""",
    "rms_norm": """
static inline void PREFIX_rms_norm(const float *weight, float epsilon, int size, const float *x, float *y) {
    float square = 0.0f;
    for (int i = 0; i < size; i++) square += x[i] * x[i] / (float)size;
    for (int i = 0; i < size; i++) y[i] = x[i] / sqrtf(square + epsilon) * weight[i];
}
""",
    "one_hot": """
static inline void PREFIX_one_hot(const int *component, const int *choice, int size, const float *x, float *y) {
    for (int i = 0; i < size; i++) y[i] = (int)x[component[i]] == choice[i] ? 1.0f : 0.0f;
}
""",
    "copy": """
static inline void PREFIX_copy(int size, const float *x, float *y) {
    for (int i = 0; i < size; i++) y[i] = x[i];
}
""",
    "affine": """
static inline void PREFIX_affine(const float *scale, const float *offset, int size, const float *x, float *y) {
    for (int i = 0; i < size; i++) y[i] = x[i] * scale[i] + offset[i];
}
""",
    "clip": """
static inline void PREFIX_clip(const float *low, const float *high, int size, const float *x, float *y) {
    for (int i = 0; i < size; i++) y[i] = fminf(fmaxf(x[i], low[i]), high[i]);
}
""",
    "forbid": """
static inline void PREFIX_forbid(int or_all, int size, const float *x, const float *mask, float *y) {
    int any = 0;
    for (int i = 0; i < size; i++) any |= mask[i] != 0.0f;
    for (int i = 0; i < size; i++) y[i] = mask[i] != 0.0f || (or_all && !any) ? x[i] : -1e9f;
}
""",
    "expectation": """
static inline void PREFIX_expectation(const float *atoms, int number, int size, const float *x, float *y) {
    for (int i = 0; i < size; i++, x += number) {
        float highest = x[0], total = 0.0f, sum = 0.0f;
        for (int k = 1; k < number; k++) highest = fmaxf(highest, x[k]);
        for (int k = 0; k < number; k++) {
            float weight = expf(x[k] - highest);
            total += weight;
            sum += weight * atoms[k];
        }
        y[i] = sum / total;
    }
}
""",
    "minimum": """
static inline void PREFIX_minimum(int size, const float *x, float *y) {
    for (int i = 0; i < size; i++) y[i] = fminf(x[i], y[i]);
}
""",
    "rint": """
static inline void PREFIX_rint(int size, const float *x, float *y) {
    for (int i = 0; i < size; i++) y[i] = rintf(x[i]);
}
""",
    "positive": """
static inline void PREFIX_positive(int size, const float *x, float *y) {
    for (int i = 0; i < size; i++) y[i] = x[i] > 0.0f ? 1.0f : 0.0f;
}
""",
    "argmax": """
static inline float PREFIX_argmax(int size, int start, const float *x) {
    int best = 0;
    for (int i = 1; i < size; i++) best = x[i] > x[best] ? i : best;
    return (float)(start + best);
}
""",
    "sigmoid": """
static inline float PREFIX_sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
""",
    "gru": """
static inline void PREFIX_gru(const float *entering, const float *recurrent, int size, const float *state,
                              float *next) {
    for (int i = 0; i < size; i++) {
        const float reset = PREFIX_sigmoid(entering[i] + recurrent[i]);
        const float update = PREFIX_sigmoid(entering[size + i] + recurrent[size + i]);
        const float fresh = tanhf(entering[2 * size + i] + reset * recurrent[2 * size + i]);
        next[i] = fresh + update * (state[i] - fresh);
    }
}
""",
    "lstm": """
static inline void PREFIX_lstm(const float *entering, const float *recurrent, int size, const float *state,
                               float *next) {
    for (int i = 0; i < size; i++) {
        const float enter = PREFIX_sigmoid(entering[i] + recurrent[i]);
        const float keep = PREFIX_sigmoid(entering[size + i] + recurrent[size + i]);
        const float fresh = tanhf(entering[2 * size + i] + recurrent[2 * size + i]);
        const float leave = PREFIX_sigmoid(entering[3 * size + i] + recurrent[3 * size + i]);
        next[size + i] = keep * state[size + i] + enter * fresh;
        next[i] = leave * tanhf(next[size + i]);
    }
}
""",
}

ACTIVATIONS = {  # of one number
    "tanh": "tanhf(x)",
    "relu": "fmaxf(x, 0.0f)",
    "elu": "x > 0.0f ? x : expm1f(x)",
    "silu": "x / (1.0f + expf(-x))",
    "gelu": "0.5f * x * (1.0f + erff(x * 0.70710678f))",
    "leaky_relu": "x > 0.0f ? x : 0.01f * x",
    "mish": "x * tanhf(fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))))",
}

ACTIVATION = """
static inline void PREFIX_NAME(int size, const float *x, float *y) {
    for (int i = 0; i < size; i++) y[i] = PREFIX_NAME_of(x[i]);
}
"""

ACTIVATION_OF = """
static inline float PREFIX_NAME_of(float x) { return FORMULA; }
"""

USES = {"gru": ("dense", "sigmoid"), "lstm": ("dense", "sigmoid"), "concat": ("copy",), "number": ("copy",)}
USES |= {"minimum": ("copy",)}
NOT_CALLED = ("concat", "number", "flatten", "slice")  # operations without a function


def sources(operations: set[str], activations: set[str], prefix: str) -> str:
    """The functions that these operations and activations need."""
    needed = operations | {used for name in operations for used in USES.get(name, ())}
    parts = [text for name, text in FUNCTIONS.items() if name in needed]
    for name in sorted(activations):
        both = ACTIVATION_OF.replace("FORMULA", ACTIVATIONS[name]) + ACTIVATION
        parts.append(both.replace("NAME", name))
    return "".join(parts).replace("PREFIX", prefix)
