/* Threads of libfm_clip in a process that binds its threads to CPUs. */
#include <dirent.h>
#include <pthread.h>
#include <sched.h>

#include "kernels/clip/clip_pool.h"
#include "tests/unit/test.h"

enum { TASKS_MAX = 64 };

/* Threads of this process now. */
static int list_tasks(int task[TASKS_MAX])
{
    int n = 0;
    DIR *d = opendir("/proc/self/task");
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        if (atoi(e->d_name) > 0 && n < TASKS_MAX)
            task[n++] = atoi(e->d_name);
    closedir(d);
    return n;
}

/* The CPUs of the one thread that fm_clip_pool_want creates. */
static cpu_set_t cpus_of_new_helper(int threads)
{
    int before[TASKS_MAX], after[TASKS_MAX], b = list_tasks(before), found = 0;
    cpu_set_t set;
    CPU_ZERO(&set);
    fm_clip_pool_want(threads);
    int a = list_tasks(after);
    assert_int_equal(a, b + 1);
    for (int i = 0; i < a; i++) {
        bool old = false;
        for (int j = 0; j < b; j++)
            old = old || after[i] == before[j];
        if (!old)
            found += sched_getaffinity(after[i], sizeof set, &set) == 0;
    }
    assert_int_equal(found, 1);
    return set;
}

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;

static void *wait_at_gate(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&gate);
    pthread_mutex_unlock(&gate);
    return NULL;
}

static void bind_to(pthread_t thread, int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    assert_int_equal(pthread_setaffinity_np(thread, sizeof set, &set), 0);
}

static void count_task(void *arg, int i, int worker)
{
    (void)worker;
    ((int *)arg)[i]++;
}

TEST(helpers_run_where_the_process_does)
{
    cpu_set_t all, own;
    int cpu[2], n = 0, done[100] = {0};
    pthread_t other;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    if (CPU_COUNT(&all) < 2)
        skip();
    for (int i = 0; n < 2; i++)
        if (CPU_ISSET(i, &all))
            cpu[n++] = i;
    own = cpus_of_new_helper(2); /* no thread is bound */
    assert_true(CPU_EQUAL(&own, &all));
    pthread_mutex_lock(&gate);
    assert_int_equal(pthread_create(&other, NULL, wait_at_gate, NULL), 0);
    bind_to(pthread_self(), cpu[0]);
    bind_to(other, cpu[1]);
    own = cpus_of_new_helper(3); /* bound neither to the caller's cpu[0] nor to all */
    assert_true(CPU_COUNT(&own) == 1 && CPU_ISSET(cpu[1], &own));
    fm_clip_pool_for(3, 100, count_task, done);
    for (int i = 0; i < 100; i++)
        assert_int_equal(done[i], 1);
    pthread_mutex_unlock(&gate);
    pthread_join(other, NULL);
}

TEST_MAIN(NULL, NULL)
