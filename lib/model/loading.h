/*
 * What opening and reading a model share; private to lib/model/model.c, loading.c and slots.c.
 */
#ifndef FM_LOADING_H
#define FM_LOADING_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "lib/base/mem.h"
#include "lib/model/model.h"
#include "lib/model/packed.h"
#include "lib/model/source.h"
#include "lib/model/stored.h"
#include "lib/model/weightsum.h"

/* A tensor of a layer: where it lies, what it becomes. */
struct fm_model_tensor {
    const struct fm_weight *weight;
    enum fm_weight_part part; /* the weight's, or as its codes lie */
    int expert;               /* -1: not one expert's */
    struct fm_stored at;
    const struct fm_packed_part *packed; /* codes of a bundle, else NULL */
};

/* What one layer needs: its tensors in file order. */
struct fm_layer_tensors {
    struct fm_model_tensor *place;
    size_t places;
    uint64_t bytes; /* on their way into memory: of all tensors, */
    uint64_t piece; /* and the most that one task has of them */
    bool fused;     /* some tensor holds all experts */
    bool checked;   /* every weight was seen to be finite */
};

/* Memory for one layer. */
struct fm_layer_slot {
    int l; /* resident layer, -1: none */
    char *block;
    struct fm_out mlp_gate_up, mlp_down, gate_up, down; /* the layer's, to be filled */
    int64_t *row0;                                      /* (E), as cap is: the layer's */
    int *cap;
    struct fm_layer layer;
};

/* A thread that asks the system for the bytes of layer l. */
struct fm_prefetch {
    pthread_t thread;
    bool running;
    atomic_bool enough; /* they are about to be read: no more of it */
    int l;
};

struct fm_model {
    char *path;
    const struct fm_ops *ops; /* that convert the weights */
    struct fm_tensors tensors;
    struct fm_config config;
    struct fm_packed packed; /* of a bundle of codes */
    bool keeps;              /* its codes stay codes in a bundle: values are never rounded */
    enum fm_dtype dtype;
    uint32_t *caps; /* (M, E) */
    const int32_t *order;
    struct fm_layer_tensors *layer; /* (L) */
    struct fm_model_tensor nonlayer_tensor[8];
    int nonlayer_count;
    struct fm_nonlayer nonlayer;
    uint64_t memory;
    int pinned;                 /* layers [0, pinned) stay; the others take turns in one slot */
    struct fm_layer_slot *slot; /* (L + 1), of which pinned + 1 are used */
    struct fm_weightsum sums;   /* of what was read so far */
    bool summed[FM_LAYERS_MAX + 1];
    const struct fm_weightsum *wanted; /* NULL: whatever they are */
    struct fm_extra extra;             /* tensors of no decoder layer that are there */
    enum fm_model_rounding rounding;
    struct fm_prefetch ahead;
};

/* Sum of the caps of decoder layer l; 0: it is dense. */
size_t fm_loading_channels(const struct fm_model *m, int l);

/* Begin to look ahead at layer l, where nothing is under way; and end that, where something is. */
void fm_prefetch_begin(struct fm_model *m, int l);
void fm_prefetch_end(struct fm_model *m);

/* What the matrices of experts and MLPs are in memory: bfloat16 where they are that on disk and
 * products would round them to it, else float32. */
enum fm_dtype fm_slots_held(const struct fm_model *m);

/* The same of a field of a layer: products round projections, whatever they are on disk.  And of a
 * tensor outside the layers: an embedding is looked up, too, and stays what it is. */
enum fm_dtype fm_slots_field(const struct fm_model *m, const struct fm_weight *w);
enum fm_dtype fm_slots_nonlayer(const struct fm_model *m, const struct fm_model_tensor *p);

/* Bytes that an array of n takes among a layer's; that layer l takes. */
static inline size_t fm_slots_size(uint64_t n, enum fm_dtype dtype)
{
    return ((size_t)n * (size_t)(fm_dtype_bits(dtype) / 8) + FM_ALIGN - 1) / FM_ALIGN * FM_ALIGN;
}
size_t fm_slots_bytes(const struct fm_model *m, int l);

/* Arrays of a slot for layer l, and where its experts lie; the slot takes its memory at the first
 * call.  FM_ENOMEM. */
int fm_slots_shape(struct fm_model *m, struct fm_layer_slot *slot, int l, struct fm_err *err);

#endif
