/* One JSON line of how fast this device is: qpd_bench [SECONDS] [OBSERVATIONS]. Without a file of
 * observations the golden vectors are used. POSIX hosts only. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "qpd.h"
#include "qpd_golden.h"
#include "qpd_unpack.h"

#define MOST_OBSERVATIONS 512
#define MOST_SAMPLES 100000
#ifdef __APPLE__ /* ru_maxrss is in bytes there, elsewhere in KiB */
#define RSS_UNIT 1
#else
#define RSS_UNIT 1024
#endif

static uint8_t observations[MOST_OBSERVATIONS][QPD_INPUT_BYTES];
static uint32_t samples[MOST_SAMPLES];

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static int load(const char *path)
{
    if (path) {
        FILE *file = fopen(path, "rb");
        const size_t n = file ? fread(observations, QPD_INPUT_BYTES, MOST_OBSERVATIONS, file) : 0;
        if (file) {
            fclose(file);
        }
        return (int)n;
    }
    const uint8_t *runs = qpd_golden_runs;
    for (int i = 0; i < QPD_GOLDEN; ++i) {
        runs = qpd_unpack(runs, observations[i]);
    }
    return QPD_GOLDEN;
}

/* "model name" of /proc/cpuinfo, or the device tree's, or "unknown"; no quotes or backslashes. */
static void device_name(char *name, size_t size)
{
    char line[256];
    FILE *file = fopen("/proc/device-tree/model", "r");
    snprintf(name, size, "unknown");
    if (file && fgets(line, sizeof line, file)) {
        snprintf(name, size, "%.100s", line);
    }
    if (file) {
        fclose(file);
    } else if ((file = fopen("/proc/cpuinfo", "r"))) {
        while (fgets(line, sizeof line, file)) {
            const char *value = strchr(line, ':');
            if (value && value[1] && strncmp(line, "model name", 10) == 0) {
                snprintf(name, size, "%.100s", value + 2);
                break;
            }
        }
        fclose(file);
    }
    for (char *c = name; *c; ++c) {
        if (*c < ' ' || *c == '"' || *c == '\\') {
            *c = *c == '\n' ? '\0' : '_';
            if (!*c) {
                break;
            }
        }
    }
}

int main(int argc, char **argv)
{
    const double seconds = argc > 1 ? atof(argv[1]) : 2.0;
    const int count = load(argc > 2 ? argv[2] : 0);
#if QPD_DISCRETE
    int32_t answer[QPD_ACTIONS];
#else
    qpd_action answer[QPD_ACTIONS];
#endif
    char device[128];
    uint32_t n = 0, warm = 0;
    if (count < 1) {
        fprintf(stderr, "qpd_bench: no observations of %d bytes there\n", QPD_INPUT_BYTES);
        return 2;
    }
    const uint64_t start = now_ns(), end = start + (uint64_t)(seconds * 1e9);
    uint64_t before = start;
    while (n < MOST_SAMPLES && (before < end || n < 10)) {
        qpd_act(observations[warm++ % (uint32_t)count], answer);
        const uint64_t after = now_ns();
        if (warm > 20) { /* the first calls fill the caches */
            samples[n++] = (uint32_t)(after - before);
        }
        before = after;
    }
    qsort(samples, n, sizeof samples[0], ascending);
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    device_name(device, sizeof device);
    const double median = samples[n / 2];
    printf("{\"device\": \"%s\", \"student\": \"%s\", \"runtime\": \"c\", \"kernels\": \"%s\", "
           "\"compiler\": \"%s\", \"threads\": 1, \"forwards\": %lu, \"median_ns\": %.0f, "
           "\"p99_ns\": %lu, \"forwards_per_second\": %.1f, \"peak_rss_bytes\": %lu, "
           "\"weight_bits\": [%d], \"constant_bytes\": %d, \"arena_bytes\": %d}\n",
           device, QPD_NAME, qpd_kernel_name(), __VERSION__, (unsigned long)n, median,
           (unsigned long)samples[n - 1 - n / 100], median > 0 ? 1e9 / median : 0.0,
           (unsigned long)usage.ru_maxrss * RSS_UNIT, QPD_LEAST_BITS, QPD_CONSTANT_BYTES,
           QPD_ARENA_BYTES);
    return 0;
}
