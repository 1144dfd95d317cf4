/*
 * Structures that lib/model/model.c and loading.c share to open and read a model.
 */
#ifndef FM_LOADING_H
#define FM_LOADING_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "lib/base/mem.h"
#include "lib/model/model.h"
#include "lib/model/packed.h"
#include "lib/model/reading.h"
#include "lib/model/source.h"
#include "lib/model/stored.h"

/* A tensor of a layer: its place on disk and the weight it becomes. */
struct fm_model_tensor {
    const struct fm_weight *weight;
    enum fm_weight_part part; /* the weight's part, or the part that its codes are stored as */
    int expert;               /* -1: not of one expert */
    struct fm_stored at;
    const struct fm_packed_part *packed; /* codes of a bundle or an export; else NULL */
};

/* The tensors that a layer needs, in file order. */
struct fm_layer_tensors {
    struct fm_model_tensor *place;
    size_t places;
    uint64_t bytes; /* buffered while the layer is read, for all tensors */
    uint64_t piece; /* buffered at most for one task */
    bool fused;     /* some tensor holds all experts */
    bool checked;   /* every weight was checked to be finite */
};

/* Memory for one layer. */
struct fm_layer_slot {
    int l; /* resident layer, -1: none */
    char *block;
    struct fm_out mlp_gate_up, mlp_down, gate_up, down; /* pointers into the layer, to fill it */
    int64_t *row0;                                      /* (E), as is cap; `layer` points to both */
    int *cap;
    struct fm_layer layer;
};

/* A thread that asks the kernel to read ahead the bytes of layer l. */
struct fm_prefetch {
    pthread_t thread;
    bool running;
    atomic_bool enough; /* the layer is about to be read: stop */
    int l;
};

struct fm_model {
    char *path;
    const struct fm_ops *ops; /* for converting the weights */
    bool draft;               /* opened by fm_model_open_draft */
    struct fm_tensors tensors;
    struct fm_config config;
    struct fm_packed_layers packed; /* the forms of a bundle or an export of codes */
    enum fm_model_rounding
        all; /* what FM_MODEL_ROUND_ALL means: it rounds no codes that are kept */
    const struct fm_quantiser *quantiser; /* experts are rounded to it, in the form `rounded`, and
                                             back */
    struct fm_packed rounded;
    enum fm_dtype dtype;
    uint32_t *caps; /* (M, E) */
    const int32_t *order;
    struct fm_layer_tensors *layer; /* (L) */
    struct fm_model_tensor nonlayer_tensor[8];
    int nonlayer_count;
    struct fm_nonlayer nonlayer;
    uint64_t memory;
    int pinned;                  /* layers [0, pinned) stay in memory; the others share one slot */
    struct fm_layer_slot *slot;  /* (L + 1), of which pinned + 1 are used */
    struct fm_reading_sums sums; /* sums of everything read so far */
    bool summed[FM_LAYERS_MAX + 1];
    const struct fm_reading_sums *wanted; /* required sums; NULL: any */
    struct fm_extra extra;                /* extra tensors of the model */
    enum fm_model_rounding rounding;
    struct fm_prefetch ahead;
};

/* Sum of the caps of decoder layer l; 0 for a dense layer. */
size_t fm_loading_channels(const struct fm_model *m, int l);

/* End the prefetch, if one is running. */
void fm_loading_end_prefetch(struct fm_model *m);

/* Type in memory of a tensor outside the layers: the embedding is never rounded, because its rows
 * are also looked up; the LM head has the operand type of products. */
enum fm_dtype fm_loading_nonlayer(const struct fm_model *m, const struct fm_model_tensor *p);

/* Bytes of an array of n elements in a layer's block. */
static inline size_t fm_loading_size(uint64_t n, enum fm_dtype dtype)
{
    return ((size_t)n * (size_t)(fm_dtype_bits(dtype) / 8) + FM_ALIGN - 1) / FM_ALIGN * FM_ALIGN;
}

#endif
