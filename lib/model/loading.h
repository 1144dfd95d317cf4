/*
 * What opening and reading a model share; private to lib/model/model.c and lib/model/loading.c.
 */
#ifndef FM_LOADING_H
#define FM_LOADING_H

#include <pthread.h>
#include <stdbool.h>

#include "lib/model/model.h"
#include "lib/model/source.h"
#include "lib/model/stored.h"
#include "lib/model/weightsum.h"

/* A tensor of a layer: where it lies, what it becomes. */
struct fm_model_tensor {
    const struct fm_weight *weight;
    int expert; /* -1: not one expert's */
    struct fm_stored at;
    size_t raw, raw_scale; /* offsets in the raw buffer */
};

/* What one layer needs: its tensors in file order. */
struct fm_layer_plan {
    struct fm_model_tensor *place;
    size_t places;
    size_t raw_bytes, floats;
    bool checked; /* every weight was seen to be finite */
};

/* Memory for one layer. */
struct fm_layer_slot {
    int l; /* resident layer, -1: none */
    float *block;
    int64_t *row0; /* (E), as cap is: the layer's */
    int *cap;
    struct fm_layer layer;
};

/* A thread that reads raw bytes of a layer ahead. */
struct fm_prefetch {
    pthread_t thread;
    bool running;
    int rc;
    struct fm_err err;
};

struct fm_model {
    char *path;
    const struct fm_ops *ops; /* whose device holds the weights */
    struct fm_tensors tensors;
    struct fm_config config;
    enum fm_dtype dtype;
    uint32_t *caps; /* (M, E) */
    const int32_t *order;
    struct fm_layer_plan *plan; /* (L) */
    struct fm_model_tensor end[8];
    int ends_count;
    struct fm_ends ends;
    int pinned;                 /* layers [0, pinned) stay; the others take turns in one slot */
    struct fm_layer_slot *slot; /* (pinned + 1) */
    char *raw;                  /* bytes of layer raw_l as the file has them */
    int raw_l;
    struct fm_digest raw_sum; /* of these bytes, where the layer was not summed before */
    struct fm_weightsum sums; /* of what was read so far */
    bool summed[FM_LAYERS_MAX + 1];
    const struct fm_weightsum *wanted; /* NULL: whatever they are */
    struct fm_extra extra;             /* tensors of no decoder layer that are there */
    enum fm_model_rounding rounding;
    struct fm_prefetch ahead;
};

/* Sum of the caps of decoder layer l; 0: it is dense. */
size_t fm_loading_channels(const struct fm_model *m, int l);

/* Floats that an array of n takes among a layer's. */
static inline size_t fm_loading_room(uint64_t n)
{
    return ((size_t)n + 15) / 16 * 16;
}

/* Wait for the thread that reads ahead, if there is one. */
void fm_loading_join(struct fm_model *m);

#endif
