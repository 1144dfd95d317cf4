/*
 * libfm_clip gives the same bits in a program whose signal handlers run on the stack of the
 * interrupted thread. Code that used the stack pointer as a general register would fail, because a
 * handler's frame is written below the address in it.
 */
#include "tests/unit/clip.h"

#include <pthread.h>
#include <signal.h>
#include <sys/time.h>

enum { CALLERS = 3, FRAME_BYTES = 8192, HITS = 200, CALLS_MIN = 4, CALLS_MAX = 20000 };

static atomic_int hits; /* handlers that ran */

/* The handler: installed without SA_ONSTACK, it writes its whole frame. */
static void dirty_the_stack(int sig)
{
    volatile unsigned char frame[FRAME_BYTES];
    for (size_t i = 0; i < sizeof frame; i++)
        frame[i] = (unsigned char)(sig + (int)i);
    atomic_fetch_add(&hits, frame[1] != 0);
}

struct caller {
    pthread_t thread;
    struct fm_clip *clip;
    const struct layer *layer;
    struct call call;
    const void *expected;
    int wrong; /* calls that gave different bits */
    atomic_bool over;
};

static void *call_under_fire(void *arg)
{
    struct caller *c = arg;
    size_t size = (size_t)(c->call.c.N * c->layer->l.H) * bytes_of(c->layer->l.type);
    for (int i = 0; i < CALLS_MAX && (i < CALLS_MIN || atomic_load(&hits) < HITS); i++) {
        memset(c->call.c.out, 0xAB, size);
        bool right = fm_clip_forward(c->clip, &c->call.c, NULL) == FM_CLIP_OK &&
                     memcmp(c->call.c.out, c->expected, size) == 0;
        c->wrong += !right;
    }
    atomic_store(&c->over, true);
    return NULL;
}

/* A timer signals the process, and this thread signals each caller, until all of them have
 * ended. */
static void fire(struct caller caller[CALLERS])
{
    const struct itimerval often = {{0, 100}, {0, 100}};
    const struct timespec pause = {0, 20000};
    bool going = true;
    setitimer(ITIMER_REAL, &often, NULL);
    while (going) {
        going = false;
        for (int i = 0; i < CALLERS; i++) {
            if (atomic_load(&caller[i].over))
                continue;
            going = true;
            pthread_kill(caller[i].thread, SIGUSR1); /* not joined yet: its id is valid */
        }
        nanosleep(&pause, NULL);
    }
    setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
}

static void call_in_a_storm(const struct layer *s, int N)
{
    struct fm_clip *clip = NULL;
    struct call quiet = make_call(s, N, 2);
    struct caller caller[CALLERS];
    if (fm_clip_prepare(&clip, &s->l, NULL) != FM_CLIP_OK)
        return; /* a path that this machine does not have */
    run(clip, s, &quiet);
    atomic_store(&hits, 0);
    for (int i = 0; i < CALLERS; i++) {
        caller[i] = (struct caller){
            .clip = clip, .layer = s, .call = copy_call(s, &quiet), .expected = quiet.c.out};
        assert_int_equal(pthread_create(&caller[i].thread, NULL, call_under_fire, &caller[i]), 0);
    }
    fire(caller);
    for (int i = 0; i < CALLERS; i++) {
        pthread_join(caller[i].thread, NULL);
        assert_int_equal(caller[i].wrong, 0);
    }
    assert_true(atomic_load(&hits) >= HITS);
    fm_clip_release(clip);
}

KERNEL_TEST(handlers_on_the_callers_stack_change_no_bit)
{
    static const int32_t types[] = {FM_CLIP_F32, FM_CLIP_F16, FM_CLIP_BF16};
    const struct sigaction action = {.sa_handler = dirty_the_stack, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    sigaction(SIGALRM, &action, NULL);
    for (size_t p = 0; p < sizeof paths / sizeof *paths; p++)
        for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
            struct layer s = make_layer(types[t], 128, 200, 4);
            s.l.path = paths[p];
            call_in_a_storm(&s, 1); /* few and many rows use different kernels */
            call_in_a_storm(&s, 90);
        }
}

TEST_MAIN(NULL, NULL)
