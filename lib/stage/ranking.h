/*
 * The ranking: the scores of all channels, and the order that follows from them.  In a stream it is
 * the member ranking.safetensors.
 */
#ifndef FM_RANKING_H
#define FM_RANKING_H

#include <stddef.h>
#include <stdint.h>

#include "formats/bundle/bundle.h"
#include "lib/base/err.h"

struct fm_ranking {
    int M, E, I;
    int ahead;      /* 1: after these M layers there is one for multi-token prediction; else 0 */
    int group;      /* neighbouring channels that are ranked together; divides I */
    double *scores; /* (M + ahead, E, I) in original channel order, finite, >= 0 */
    int32_t *order; /* (M + ahead, E, I) original channel at each rank */
    int64_t
        *tokens; /* (M + ahead, E) number of token slots that calibration routed to the expert */
};

/* Allocate zeroed arrays, with group 1; release takes a zeroed struct too. */
int fm_ranking_init(struct fm_ranking *r, int M, int ahead, int E, int I, struct fm_err *err);
void fm_ranking_release(struct fm_ranking *r);
/* Release the scores, which a caller that only permutes does not need. */
void fm_ranking_keep_order(struct fm_ranking *r);

/* The scores of an expert with less than a tenth of an even share of its layer's tokens are
 * noise. */
enum fm_reach { FM_REACH_NONE, FM_REACH_STARVED, FM_REACH_ENOUGH };

/* The number of token slots of the m-th layer of experts; and whether expert e got enough of these
 * `slots`. */
double fm_ranking_slots(const struct fm_ranking *r, int m);
enum fm_reach fm_ranking_reach(const struct fm_ranking *r, int m, int e, double slots);

/*
 * Fill order from scores: groups by the sum of their channels' scores, descending, ties to the
 * lower group; the channels inside a group keep the checkpoint's order.  FM_ENOMEM.
 */
int fm_ranking_sort(struct fm_ranking *r, struct fm_err *err);
/* Fill order with the checkpoint's order. */
void fm_ranking_original(struct fm_ranking *r);

/* The size of the member ranking.safetensors; the arrays of the ranking may be NULL.  moe (M) has
 * the layers' numbers; that of the layer ahead is L. */
int fm_ranking_size(const struct fm_ranking *r, const int16_t *moe, int L, size_t *size,
                    struct fm_err *err);
/* The bytes of ranking.safetensors; free() *data.  Same ranking, same bytes. */
int fm_ranking_pack(const struct fm_ranking *r, const int16_t *moe, int L, void **data,
                    size_t *size, struct fm_err *err);

/*
 * Read a ranking from a stream and check its digest.  FM_EFORMAT, naming layer and expert, if
 * shapes are not the manifest's, a score is negative or not finite, tokens are negative, an order
 * is not a permutation or does not follow from the scores in groups of fm_ranking_group (it is the
 * checkpoint's order if fm-rank's history has "order": "original").
 */
int fm_ranking_open(struct fm_ranking *r, const struct fm_bundle *b, struct fm_err *err);

/* The options of fm-rank in the stream's history. */
const cJSON *fm_ranking_options(const struct fm_bundle *b);
/* fm-rank's default criterion. */
#define FM_RANKING_CRITERION "taylor"
/* The criterion that the stream was ranked by: the default if fm-rank's history does not record
 * one, "" if what it records is not a string. */
const char *fm_ranking_criterion(const struct fm_bundle *b);
/* The channel group of the stream's ranking, 1 if fm-rank's history does not record one;
 * FM_EFORMAT if it does not divide I. */
int fm_ranking_group(int *group, const struct fm_bundle *b, int I, struct fm_err *err);

#endif
