/* Arithmetic in a floating format, one pass over memory: what PyTorch's operations would give when
   each of them rounds, bit for bit. Compiled by kernels.py, for this machine. No fused multiply and
   add (-ffp-contract=off): it would round once where a format rounds twice. */

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__F16C__) && defined(__AVX__)
#include <immintrin.h>
#define HAS_HALVES 1        /* the processor has float16 conversions, and AVX with them */
#else
#define HAS_HALVES 0
#endif

/* Vectors of the compiler: eight numbers, whatever the processor's own width. */
enum { LANES = 8 };
typedef float Reals __attribute__((vector_size(4 * LANES)));
typedef uint32_t Words __attribute__((vector_size(4 * LANES)));

#define INLINE static inline __attribute__((always_inline))

typedef struct {
    int32_t dropped;        /* mantissa bits that float32 has and the format has not */
    uint32_t half;          /* just under half a unit of the last bit that stays */
    uint32_t kept;          /* mask of the bits that stay */
    float smallest_normal;
    float addend;           /* added to a subnormal and taken off: its last bit is the format's */
    float largest;
    float beyond;           /* what becomes of larger ones: infinity, or the largest */
} Format;

/* Float16, to which the processor rounds: `is_half` below, a constant in every loop. */
static int is_float16(const Format f)
{
    return HAS_HALVES && f.dropped == 13 && f.largest == 65504.0f && isinf(f.beyond);
}

INLINE Reals chosen(Words mask, Reals a, Reals b)
{
#if HAS_HALVES
    return (Reals)_mm256_blendv_ps((__m256)b, (__m256)a, (__m256)mask);
#else
    return (Reals)(((Words)a & mask) | ((Words)b & ~mask));
#endif
}

INLINE Reals size_of(Reals x) { return (Reals)((Words)x & 0x7fffffffu); }

INLINE Reals with_sign(Reals size, Reals sign)
{
    return (Reals)((Words)size | ((Words)sign & 0x80000000u));
}

INLINE Reals root_of(Reals x)
{
#if HAS_HALVES
    return (Reals)_mm256_sqrt_ps((__m256)x);
#else
    for (int i = 0; i < LANES; i++)
        x[i] = sqrtf(x[i]);
    return x;
#endif
}

INLINE Reals rounded(Reals x, const Format f, const int is_half)
{
#if HAS_HALVES
    if (is_half)
        return (Reals)_mm256_cvtph_ps(_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT));
#else
    (void)is_half;
#endif
    Words bits = (Words)x, tie = f.dropped ? (bits >> f.dropped) & 1u : (Words){0};
    Reals size = size_of(x), small = with_sign((size + f.addend) - f.addend, x);
    Reals normal = (Reals)((bits + tie + f.half) & f.kept), found, beyond = (Reals){0} + f.beyond;
    found = chosen((Words)(size < f.smallest_normal), small, normal);
    found = chosen((Words)(size_of(found) > f.largest), with_sign(beyond, found), found);
    return chosen((Words)(x != x), x, found);
}

/* What float16 holds, as float32; subnormals by a product, as their exponent is none. */
INLINE Reals widened(const uint16_t *from)
{
    Reals x;
#if HAS_HALVES
    x = (Reals)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from));
#else
    for (int i = 0; i < LANES; i++) {
        uint32_t bits = (uint32_t)(from[i] & 0x7fff) << 13;
        float size;
        if ((from[i] & 0x7c00) == 0x7c00)
            bits |= 0x7f800000;
        memcpy(&size, &bits, 4);
        size = (from[i] & 0x7c00) == 0x7c00 ? size : size * 0x1p112f;
        x[i] = from[i] & 0x8000 ? -size : size;
    }
#endif
    return x;
}

/* Of numbers that float16 has: the inverse. */
INLINE void narrow(uint16_t *to, Reals x)
{
#if HAS_HALVES
    _mm_storeu_si128((__m128i *)to, _mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT));
#else
    for (int i = 0; i < LANES; i++) {
        float its = x[i], size = fabsf(its), scaled = size * 0x1p-112f;
        uint32_t bits, sign;
        memcpy(&bits, size <= 65504.0f ? &scaled : &size, 4);
        memcpy(&sign, &its, 4);
        bits = size <= 65504.0f ? bits >> 13 : 0x7c00 | ((bits >> 13) & 0x3ff);
        to[i] = (uint16_t)(bits | ((sign >> 16) & 0x8000));
    }
#endif
}

/* Eight numbers from `i` on, stored as float16 or as float32. */
INLINE Reals read_at(const void *from, size_t i, const int in_halves)
{
    Reals x;
    if (in_halves)
        return widened((const uint16_t *)from + i);
    memcpy(&x, (const float *)from + i, sizeof x);
    return x;
}

INLINE void write_at(void *to, size_t i, Reals x, const int in_halves)
{
    if (in_halves)
        narrow((uint16_t *)to + i, x);
    else
        memcpy((float *)to + i, &x, sizeof x);
}

/* Tensors of `count` numbers, of which a call sees eight from `i` on; those that are NULL are left
   out. `Numbers` is what else it needs. */
typedef void Each(void *const *tensors, size_t i, const void *numbers, const Format f,
                  const int is_half, const int in_halves);

enum { MOST = 5 };          /* tensors */

INLINE void for_all(Each each, void *const *tensors, size_t count, const void *numbers,
                    const Format f, const int is_half, const int in_halves)
{
    const size_t whole = count - count % LANES, size = in_halves ? 2 : 4;
    char rest[MOST][4 * LANES] = {{0}};
    void *copies[MOST];
    for (size_t i = 0; i < whole; i += LANES)
        each(tensors, i, numbers, f, is_half, in_halves);
    if (whole == count)
        return;
    for (int k = 0; k < MOST; k++) {    /* what is left over, among zeros */
        copies[k] = tensors[k] ? rest[k] : NULL;
        if (tensors[k])
            memcpy(rest[k], (char *)tensors[k] + size * whole, size * (count - whole));
    }
    each(copies, 0, numbers, f, is_half, in_halves);
    for (int k = MOST - 1; k >= 0; k--)     /* the first one last: it may be the second, too */
        if (tensors[k])
            memcpy((char *)tensors[k] + size * whole, rest[k], size * (count - whole));
}

/* Compile the loop three times: for any format, for float16, and for tensors of it. */
#define FOR_ALL(EACH, TENSORS, COUNT, NUMBERS, FORMAT, IN_HALVES)                                  \
    do {                                                                                           \
        if (IN_HALVES)                                                                             \
            for_all(EACH, TENSORS, COUNT, NUMBERS, FORMAT, HAS_HALVES, 1);                         \
        else if (is_float16(FORMAT))                                                               \
            for_all(EACH, TENSORS, COUNT, NUMBERS, FORMAT, 1, 0);                                  \
        else                                                                                       \
            for_all(EACH, TENSORS, COUNT, NUMBERS, FORMAT, 0, 0);                                  \
    } while (0)

INLINE void round_each(void *const *at, size_t i, const void *numbers, const Format f,
                       const int is_half, const int in_halves)
{
    (void)numbers;
    write_at(at[0], i, rounded(read_at(at[1], i, in_halves), f, is_half), in_halves);
}

void qpd_round(float *to, float *from, size_t count, const Format *format)
{
    void *const at[MOST] = {to, from};
    FOR_ALL(round_each, at, count, NULL, *format, 0);
}

typedef struct {
    float beta1, rest1;     /* 1 - beta1 */
    float beta2, rest2;     /* of a root: the roots of both */
    float correction1, correction2;
    float rate;             /* negative */
    float eps, scale;       /* gradients are divided by `scale` */
} Step;

INLINE Reals hypotenuse(Reals a, Reals b, const Format f, const int is_half)
{
    /* A NaN of either comes out: the first as the larger one, the second by its quotient. */
    Words first = (Words)(a > b) | (Words)(a != a), other = (Words)(a < b) | (Words)(a != a);
    Reals larger = chosen(first, a, b), smaller = chosen(other, a, b);
    Reals whole = chosen((Words)(larger == 0.0f), (Reals){0} + 1.0f, larger);
    Reals ratio = rounded(smaller / whole, f, is_half);
    Reals square = rounded(1.0f + rounded(ratio * ratio, f, is_half), f, is_half);
    return rounded(larger * rounded(root_of(square), f, is_half), f, is_half);
}

/* hadam.py's moments and step, then kahan.py's sum where `lost` is kept. */
INLINE void adam(void *const *at, size_t i, const Step s, const Format f, const int is_half,
                 const int in_halves, const int is_root)
{
#define R(x) rounded(x, f, is_half)
    void *value = at[0], *m = at[1], *v = at[2], *lost = at[3];
    Reals g = R(read_at(at[4], i, in_halves) / s.scale), step, root;
    Reals first = R(R(s.beta1 * read_at(m, i, in_halves)) + R(s.rest1 * g));
    Reals second = R(s.beta2 * read_at(v, i, in_halves)), now = read_at(value, i, in_halves);
    if (is_root) {
        second = hypotenuse(size_of(second), size_of(R(s.rest2 * g)), f, is_half);
        root = R(second / s.correction2);
    } else {
        second = R(second + R(s.rest2 * R(g * g)));
        root = R(root_of(R(second / s.correction2)));
    }
    write_at(m, i, first, in_halves);
    write_at(v, i, second, in_halves);
    step = R(s.rate * R(R(first / s.correction1) / R(root + s.eps)));
    if (lost) {
        Reals owed = R(step - read_at(lost, i, in_halves)), total = R(now + owed);
        write_at(lost, i, R(R(total - now) - owed), in_halves);
        write_at(value, i, total, in_halves);
    } else
        write_at(value, i, R(now + step), in_halves);
#undef R
}

INLINE void adam_each(void *const *at, size_t i, const void *numbers, const Format f,
                      const int is_half, const int in_halves)
{
    adam(at, i, *(const Step *)numbers, f, is_half, in_halves, 0);
}

INLINE void hadam_each(void *const *at, size_t i, const void *numbers, const Format f,
                       const int is_half, const int in_halves)
{
    adam(at, i, *(const Step *)numbers, f, is_half, in_halves, 1);
}

void qpd_adam(void *value, void *m, void *v, void *lost, void *gradient, size_t count,
              const Step *step, const Format *format, int is_root, int in_halves)
{
    void *const at[MOST] = {value, m, v, lost, gradient};
    if (is_root)
        FOR_ALL(hadam_each, at, count, step, *format, in_halves);
    else
        FOR_ALL(adam_each, at, count, step, *format, in_halves);
}

typedef struct {
    float tau, scale;
} Move;

/* kahan.py's soft update of `scaled`, the target times `scale`; `target` is what plays. */
INLINE void soft_update_each(void *const *at, size_t i, const void *numbers, const Format f,
                             const int is_half, const int in_halves)
{
#define R(x) rounded(x, f, is_half)
    const Move move = *(const Move *)numbers;
    Reals scaled = read_at(at[1], i, in_halves), online = read_at(at[3], i, in_halves);
    Reals step = R(move.tau * R(R(move.scale * online) - scaled));
    Reals owed = R(step - read_at(at[2], i, in_halves)), total = R(scaled + owed);
    write_at(at[2], i, R(R(total - scaled) - owed), in_halves);
    write_at(at[1], i, total, in_halves);
    write_at(at[0], i, R(total / move.scale), in_halves);
#undef R
}

void qpd_soft_update(void *target, void *scaled, void *lost, void *online, size_t count, float tau,
                     float scale, const Format *format, int in_halves)
{
    void *const at[MOST] = {target, scaled, lost, online};
    const Move move = {tau, scale};
    FOR_ALL(soft_update_each, at, count, &move, *format, in_halves);
}
