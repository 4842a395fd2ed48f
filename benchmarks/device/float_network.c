/* A network in C, from floats to the best action: argv = seconds, observations. Of float32, whose
 * layers network.h holds (made by benchmarks/device/navigation.py), or with -DINTEGERS of a C
 * export, whose files are linked. One line of JSON on stdout. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
#include "network.h"
#ifdef INTEGERS
#include "qpd.h"
#endif

#define MOST_SAMPLES 4000000
#define MOST_OBSERVATIONS 512 /* as qpd_bench: they stay in the cache */

static uint32_t samples[MOST_SAMPLES];
static float observations[MOST_OBSERVATIONS][INPUTS];

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

#ifdef INTEGERS
static int act(const float *seen) {
    static uint8_t levels[INPUTS];
    static int32_t logits[QPD_ACTIONS];
    qpd_levels_from_floats(seen, levels);
    return qpd_act(levels, logits);
}
#else
#define BLOCK 64 /* sums at once: they stay in registers, and none waits for the one before */

static float first[WIDEST], second[WIDEST];

/* Weights are [inputs][outputs], in blocks of so many outputs, the last one filled up with 0. */
static void layer(const float *weight, const float *bias, int inputs, int outputs, int relu,
                  const float *in, float *out) {
    for (int o = 0; o < outputs; o += BLOCK) {
        float sum[BLOCK];
        for (int k = 0; k < BLOCK; ++k) sum[k] = bias[o + k];
        for (int i = 0; i < inputs; ++i, weight += BLOCK)
            for (int k = 0; k < BLOCK; ++k) sum[k] += weight[k] * in[i];
        for (int k = 0; k < BLOCK; ++k) out[o + k] = relu && sum[k] < 0.0f ? 0.0f : sum[k];
    }
}

static int act(const float *seen) {
    const float *in = seen;
    float *out = first;
    for (int l = 0; l < LAYERS; ++l) {
        layer(weights[l], biases[l], widths[l], widths[l + 1], l + 1 < LAYERS, in, out);
        in = out;
        out = out == first ? second : first;
    }
    int best = 0;
    for (int a = 1; a < widths[LAYERS]; ++a)
        if (in[a] > in[best]) best = a;
    return best;
}
#endif

static int ascending(const void *a, const void *b) {
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    FILE *file = fopen(argv[2], "rb");
    if (!file) return 2;
    const size_t count = fread(observations, sizeof observations[0], MOST_OBSERVATIONS, file);
    fclose(file);
    if (count == 0) return 2;
    if (atof(argv[1]) == 0.0) { /* the actions alone, to compare */
        for (size_t k = 0; k < count; ++k) printf("%d\n", act(observations[k]));
        return 0;
    }
    volatile int answer;
    uint32_t n = 0, warm = 0;
    const uint64_t end = now_ns() + (uint64_t)(atof(argv[1]) * 1e9);
    uint64_t before = now_ns();
    while (n < MOST_SAMPLES && before < end) {
        answer = act(observations[warm++ % count]);
        const uint64_t after = now_ns();
        if (warm > 20) samples[n++] = (uint32_t)(after - before);
        before = after;
    }
    (void)answer;
    qsort(samples, n, sizeof samples[0], ascending);
    printf("{\"median_ns\": %u, \"constant_bytes\": %d}\n", samples[n / 2], CONSTANT_BYTES);
    return 0;
}
