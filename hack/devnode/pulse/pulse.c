/*
 * A worker of a gang that records when it was alive: pulse DIRECTORY
 *
 * It reads the clock first. Then it creates a file in DIRECTORY, named after its host and that moment. Through a shared
 * mapping, which outlives the process, it records there when it was last alive, how often it beat, and its longest
 * pause. All times are CLOCK_MONOTONIC nanoseconds, which all containers of a machine share.
 *
 * Its training is a count of steps in DIRECTORY/HOST.step, which resumes from the last run's count. SIGUSR1 ends it with
 * exit code 0, SIGUSR2 with 1, SIGTERM with 143.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { BEAT_NANOSECONDS = 4000000, BEATS_PER_STEP = 12 };

struct life {
    uint64_t began, last, beats;
    uint64_t still_since, still_for; /* the longest time without a beat */
    uint64_t ours;                   /* whether kubemend has started it: the others lack the environment variable */
};

static uint64_t now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (uint64_t)at.tv_sec * 1000000000u + (uint64_t)at.tv_nsec;
}

static void end(int number) { _exit(number == SIGUSR1 ? 0 : number == SIGUSR2 ? 1 : 128 + number); }

static void *mapped(const char *path, size_t size) {
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (file < 0 || ftruncate(file, (off_t)size) != 0) return MAP_FAILED;
    return mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
}

int main(int count, char **arguments) {
    uint64_t began = now();
    char host[64] = "", path[512];
    if (count != 2) return 2;
    signal(SIGUSR1, end);
    signal(SIGUSR2, end);
    signal(SIGTERM, end);
    gethostname(host, sizeof host - 1);
    snprintf(path, sizeof path, "%s/%s.%llu.life", arguments[1], host, (unsigned long long)began);
    volatile struct life *life = mapped(path, sizeof *life);
    snprintf(path, sizeof path, "%s/%s.step", arguments[1], host);
    volatile uint64_t *step = mapped(path, sizeof *step);
    if (life == MAP_FAILED || step == MAP_FAILED) {
        perror(path);
        return 3;
    }
    const char *restart = getenv("KUBEMEND_RESTART_COUNT");
    life->ours = restart != NULL;
    life->began = life->last = began;
    printf("began %llu resumed from step %llu, restart %s\n", (unsigned long long)began, (unsigned long long)*step,
           restart != NULL ? restart : "0");
    fflush(stdout);
    for (;;) {
        uint64_t at = now();
        if (at - life->last > life->still_for) {
            life->still_since = life->last;
            life->still_for = at - life->last;
        }
        life->last = at;
        if (++life->beats % BEATS_PER_STEP == 0) ++*step;
        nanosleep(&(struct timespec){.tv_nsec = BEAT_NANOSECONDS}, NULL);
    }
}
