/* Rankings in a stage stream can be read as they were written; invalid ones are refused. */
#include <math.h>

#include "tests/unit/stages.h"
#include "tests/unit/test.h"

TEST(a_ranking_reads_back)
{
    struct fm_ranking r = stages_ranking(), back;
    struct fm_bundle b = stages_open(stages_write_rank("rank", &r, "score"));
    size_t channels = (size_t)(stages_config.M * stages_config.E * stages_config.I);
    assert_ok(fm_ranking_open(&back, &b, &err));
    assert_int_equal(back.I, stages_config.I);
    assert_memory_equal(back.scores, r.scores, channels * sizeof *r.scores);
    assert_memory_equal(back.order, r.order, channels * sizeof *r.order);
    assert_memory_equal(back.tokens, r.tokens,
                        (size_t)(stages_config.M * stages_config.E) * sizeof *r.tokens);
    for (int j = 0; j < stages_config.I; j++) /* all scores are 0: the order is kept */
        assert_int_equal(back.order[3 * stages_config.I + j], j);
    fm_ranking_release(&back);
    fm_ranking_release(&r);
    fm_bundle_close(&b);
}

TEST(groups_are_ordered_by_their_sums)
{
    double scores[12] = {1, 0, 0, 5, 2, 2, 9, 0, 0, 3, 3, 3};
    static const int32_t of_3[12] = {3, 4, 5, 6, 7, 8, 9, 10, 11, 0, 1, 2};
    static const int32_t of_4[12] = {4, 5, 6, 7, 8, 9, 10, 11, 0, 1, 2, 3};
    struct fm_ranking r;
    assert_ok(fm_ranking_init(&r, 1, 0, 1, 12, &err));
    memcpy(r.scores, scores, sizeof scores);
    r.group = 3; /* sums 1, 9, 9, 9: ties to the lower group */
    assert_ok(fm_ranking_sort(&r, &err));
    assert_memory_equal(r.order, of_3, sizeof of_3);
    r.group = 4; /* 6, 13, 9 */
    assert_ok(fm_ranking_sort(&r, &err));
    assert_memory_equal(r.order, of_4, sizeof of_4);
    r.group = 12;
    assert_ok(fm_ranking_sort(&r, &err));
    for (int j = 0; j < 12; j++)
        assert_int_equal(r.order[j], j);
    fm_ranking_release(&r);
}

static void expect_ranking_refused(const struct fm_ranking *r, const char *order, const char *why)
{
    struct fm_ranking back;
    struct fm_err err = {0};
    struct fm_bundle b = stages_open(stages_write_rank("bad", r, order));
    int code = fm_ranking_open(&back, &b, &err);
    fm_bundle_close(&b);
    stages_expect(code, &err, FM_EFORMAT, why);
}

TEST(invalid_rankings_are_refused)
{
    struct fm_ranking r = stages_ranking();
    size_t at = (size_t)(stages_config.E + 2) * (size_t)stages_config.I; /* layer 1, expert 2 */
    int32_t first = r.order[at], second = r.order[at + 1];
    double score = r.scores[at];
    expect_ranking_refused(&r, "original", "should be original");
    r.order[at] = second;
    expect_ranking_refused(&r, "score", "layer 1, expert 2: channel");
    r.order[at] = stages_config.I;
    expect_ranking_refused(&r, "score", "of 37");
    r.order[at] = -1;
    expect_ranking_refused(&r, "score", "rank 0 is channel -1");
    r.order[at] = second;
    r.order[at + 1] = first;
    expect_ranking_refused(&r, "score", "comes before");
    r.order[at] = first;
    r.order[at + 1] = second;
    r.scores[at] = NAN;
    expect_ranking_refused(&r, "score", "score of channel 0");
    r.scores[at] = INFINITY;
    expect_ranking_refused(&r, "score", "score of channel 0");
    r.scores[at] = -1;
    expect_ranking_refused(&r, "score", "score of channel 0 is -1");
    r.scores[at] = score;
    r.tokens[7] = -1;
    expect_ranking_refused(&r, "score", "layer 1, expert 2: negative token");
    r.tokens[7] = 1;
    r.M--;
    expect_ranking_refused(&r, "score", "6 tensors where 3 layers need 9");
    r.M++;
    r.I--;
    expect_ranking_refused(&r, "score", "as the manifest implies");
    r.I++;
    fm_ranking_original(&r);
    expect_ranking_refused(&r, "score", "comes before");
    r.group = 2;
    expect_ranking_refused(
        &r, "score",
        "channel_group in fm-rank's history is 2; it must divide 37, the number of channels");
    r.group = 37;
    r.order[1] = 2;
    r.order[2] = 1;
    expect_ranking_refused(&r, "score", "layer 0, expert 0: rank 1 is channel 2, which splits");
    r.order[1] = 1;
    r.order[2] = 2;
    r.group = 1;
    struct fm_ranking back;
    struct fm_bundle b = stages_open(stages_write_rank("kept", &r, "original"));
    assert_ok(fm_ranking_open(&back, &b, &err));
    fm_bundle_close(&b);
    fm_ranking_release(&back);
    fm_ranking_release(&r);
}

TEST_MAIN(stages_open_model, stages_close_model)
