/* The memory limit of a job, in trees of control groups made for the test. */
#include <sys/stat.h>
#include <unistd.h>

#include "formats/file/cgroup.h"
#include "tests/unit/test.h"

static void put(const char *path, const char *text)
{
    char part[256];
    for (const char *at = strchr(path, '/'); at; at = strchr(at + 1, '/')) {
        snprintf(part, sizeof part, "%.*s", (int)(at - path), path);
        mkdir(part, 0777);
    }
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

TEST(the_least_limit_counts)
{
    put("v2/one/two/memory.max", "max\n");
    put("v2/one/memory.max", "3000000\n");
    put("v2/memory.max", "9000000\n");
    put("own2", "0::/one/two\n");
    assert_int_equal(fm_cgroup_memory("own2", "v2"), 3000000);
    put("v1/memory/job/step/memory.limit_in_bytes", "700\n");
    put("v1/memory/job/memory.limit_in_bytes", "800\n");
    put("v1/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("own1", "5:cpu:/other\n4:memory:/job/step\n0::/\n");
    assert_int_equal(fm_cgroup_memory("own1", "v1"), 700);
}

/* In a container the mount point is the container's own group, but the path is that of the host. */
TEST(an_absent_group_is_skipped)
{
    put("inside/memory.max", "5000\n");
    put("own3", "0::/far/away\nnonsense\n::\n");
    assert_int_equal(fm_cgroup_memory("own3", "inside"), 5000);
    put("own4", "0::/\n");
    assert_int_equal(fm_cgroup_memory("own4", "inside"), 5000);
}

TEST(without_a_limit_memory_is_unlimited)
{
    put("none/memory.max", "max\n");
    put("own5", "0::/\n");
    assert_true(fm_cgroup_memory("own5", "none") == UINT64_MAX);
    assert_true(fm_cgroup_memory("absent", "none") == UINT64_MAX);
    put("own6", "");
    assert_true(fm_cgroup_memory("own6", "none") == UINT64_MAX);
}

static int own_folder(void **state)
{
    static char path[] = "/tmp/test_cgroup.XXXXXX";
    *state = path;
    return mkdtemp(path) && chdir(path) == 0 ? 0 : -1;
}

static int remove_folder(void **state)
{
    char command[64];
    snprintf(command, sizeof command, "rm -r %s", (const char *)*state);
    return system(command);
}

TEST_MAIN(own_folder, remove_folder)
