/* Test the rate and the time left that a stage reports, with a clock and a file of our own. */
#include "lib/base/clock.h"
#include "tests/unit/test.h"

static double told; /* seconds */
static FILE *said;

static double tell(void)
{
    return told;
}

#undef stderr
#define stderr said
#define fm_clock_now tell
#include "cmd/progress.c"

/* Report `done` of 30 layers at `seconds`; return the line that is printed, or "". */
static const char *report(const struct fm_progress *p, uint64_t done, double seconds)
{
    static char line[256];
    long from = ftell(said);
    told = seconds;
    p->report(p->self, "measure", done, 30, "layers");
    fseek(said, from, SEEK_SET);
    if (!fgets(line, sizeof line, said))
        line[0] = 0;
    fseek(said, 0, SEEK_END);
    return line;
}

/* fm-recover measures the masks twice; the second rate must not count the time of the first. */
TEST(a_repeated_stage_has_its_own_rate)
{
    struct fm_progress p;
    said = tmpfile();
    assert_non_null(said);
    setenv("TERM", "dumb", 1);
    fm_progress_begin(&p, "tool", false);
    p.phase(p.self, 1, 1);
    report(&p, 0, 0);
    assert_string_equal(report(&p, 30, 600), "tool: measure: 30 of 30 layers, 0.05/s\n");
    p.phase(p.self, 1, 0);
    report(&p, 0, 600);
    assert_string_equal(report(&p, 15, 900), "tool: measure: 15 of 30 layers, 0.05/s, 5:00 left\n");
    fclose(said);
}

TEST_MAIN(NULL, NULL)
