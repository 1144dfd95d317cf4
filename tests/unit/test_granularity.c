/* Experts that share a width: their gradient is the sum, and every method gives them one width. */
#include "lib/learn/train.h"
#include "lib/masks/logits.h"
#include "lib/masks/masks.h"
#include "tests/unit/test.h"
#include "tests/unit/training.h"

enum { L = 3, E = 5, X = L * E, I = 37, A = 4 };

TEST(sums_and_widths_go_to_groups_and_back)
{
    double x[6 * 2] = {1, 10, 2, 20, 3, 30, 4, 40, 5, 50, 6, 60};
    fm_granularity_sum(x, x, 6, 3, 2);
    assert_true(x[0] == 6 && x[1] == 60 && x[2] == 15 && x[3] == 150);
    uint32_t widths[6] = {7, 9};
    fm_granularity_spread(widths, 6, 3);
    const uint32_t spread[6] = {7, 7, 7, 9, 9, 9};
    assert_memory_equal(widths, spread, sizeof spread);
    fm_granularity_gather(widths, 6, 3);
    assert_true(widths[0] == 7 && widths[1] == 9);
    assert_int_equal(fm_granularity_size(FM_PER_EXPERT, L, E), 1);
    assert_int_equal(fm_granularity_size(FM_PER_LAYER, L, E), E);
    assert_int_equal(fm_granularity_size(FM_PER_MODEL, L, E), X);
}

/* Add all parts of the training gradient.  Logits and samples are the same for every expert; dz and
 * q differ from expert to expert. */
static void add_gradient(struct fm_logits *z, const double *dz, const double *q)
{
    for (int i = 0; i < z->X * A; i++) {
        z->alpha[i] = 0.3 * (i % A) - 0.1 * (i % A) * (i % A);
        z->soft[i] = 0.1 + 0.1 * (i % A);
    }
    fm_logits_refresh(z);
    fm_logits_clear(z);
    fm_logits_back_sample(z, dz, 1.5, 0.5);
    fm_logits_back_cost(z, q, 0.7);
    fm_logits_back_entropy(z, 0.3);
}

TEST(the_gradient_of_tied_logits_is_the_sum)
{
    struct fm_actions actions;
    assert_ok(fm_actions_parse(&actions, "0.1,0.4,0.7,1", I, 1, &err));
    for (int g = FM_PER_LAYER; g <= FM_PER_MODEL; g++) {
        int size = fm_granularity_size((enum fm_granularity)g, L, E);
        struct fm_logits free_ones = {0}, tied = {0};
        double dz[X * A], q[X];
        for (int i = 0; i < X * A; i++)
            dz[i] = (i * 37 % 23) / 7.0 - 1;
        for (int x = 0; x < X; x++)
            q[x] = 0.05 + 0.01 * (x * 7 % 11);
        assert_ok(fm_logits_init(&free_ones, &actions, X, &err));
        assert_ok(fm_logits_init(&tied, &actions, X / size, &err));
        add_gradient(&free_ones, dz, q);
        fm_granularity_sum(dz, dz, X, size, A);
        fm_granularity_sum(q, q, X, size, 1);
        add_gradient(&tied, dz, q);
        double sum[X * A];
        fm_granularity_sum(sum, free_ones.grad, X, size, A);
        for (int i = 0; i < X / size * A; i++) {
            assert_true(fabs(sum[i] - tied.grad[i]) <= 1e-13);
            assert_true(fabs(tied.grad[i]) > 1e-6);
        }
        assert_true(fabs(fm_logits_expected(&tied) - fm_logits_expected(&free_ones)) <= 1e-14);
        fm_logits_release(&free_ones);
        fm_logits_release(&tied);
    }
}

/* ---- whole runs ---- */

TEST(every_method_keeps_tied_experts_together)
{
    for (int i = 0; fm_methods[i]; i++) {
        bool layers_differ = false;
        for (int g = FM_PER_LAYER; g <= FM_PER_MODEL; g++) {
            struct runs r;
            struct fm_train_options o;
            struct fm_train_report report = {0};
            size_t size = (size_t)fm_granularity_size((enum fm_granularity)g, L, E);
            training_init(&r, &o, "ranked.fm", "tied.fm", fm_methods[i]);
            o.granularity = (enum fm_granularity)g;
            training_must(&r, &o, &report);
            assert_true(report.masks.count >= 4 && report.reached);
            for (int b = 0; b < report.masks.count; b++) {
                const uint32_t *k = fm_masks_widths(&report.masks, b);
                for (size_t x = 0; x < X; x++) {
                    assert_int_equal(k[x], k[x / size * size]);
                    layers_differ |= g == FM_PER_LAYER && k[x] != k[0];
                }
            }
            fm_train_report_release(&report);
        }
        assert_true(layers_differ || !fm_methods[i]->shapes);
    }
}

static void goes_on_to_the_same_bytes(const struct fm_method *method, enum fm_granularity g)
{
    struct runs r;
    struct fm_err err = {0};
    struct fm_train_options o;
    struct fm_train_report report = {0};
    training_init(&r, &o, "ranked.fm", "straight.fm", method);
    o.granularity = g;
    training_must(&r, &o, &report);
    fm_train_report_release(&report);
    training_init(&r, &o, "ranked.fm", "resumed.fm", method);
    o.granularity = g;
    training_stop(&r, &o, 3);
    /* The state is valid only for this granularity. */
    o.granularity = FM_PER_EXPERT;
    assert_int_equal(fm_train(&r.run, &o, NULL, &report, &err), FM_ECONFIG);
    fm_train_report_release(&report);
    o.granularity = g;
    training_go_on(&r, &o, "resumed.fm", "straight.fm");
}

TEST(a_stopped_run_goes_on_to_the_same_bytes)
{
    for (int i = 0; fm_methods[i]; i++)
        for (int g = FM_PER_LAYER; fm_methods[i]->step && g <= FM_PER_MODEL; g++)
            goes_on_to_the_same_bytes(fm_methods[i], (enum fm_granularity)g);
}

TEST_MAIN(training_ranked, NULL)
