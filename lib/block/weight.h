/*
 * One row of a family's table of tensors: a tensor's name in each kind of directory, its
 * destination in memory, its shape, and the models and layers in which it exists.  A block provides
 * its rows as a macro that takes a prefix of the names; a family combines these macros
 * (lib/family/family.h).  Reading, packing, exporting and counting parameters use the table.
 */
#ifndef FM_WEIGHT_H
#define FM_WEIGHT_H

#include <stddef.h>

/* The names under which a model's tensors are stored. */
enum fm_naming {
    FM_NAMING_STOCK,  /* a checkpoint of the family, with the names of transformers */
    FM_NAMING_ONLINE, /* a bundle's weights/ members, or an export with such files */
    FM_NAMING_RAGGED, /* the modules of our modelling file */
    FM_NAMINGS
};

/* The destination of a tensor in memory, and its layout there. */
enum fm_weight_part {
    FM_PART_NONLAYER, /* a field of struct fm_nonlayer, unchanged */
    FM_PART_NORM,     /* a field of struct fm_layer, unchanged; so are the parts up to
                         FM_PART_DOWN_BIAS, except where noted */
    FM_PART_ATTENTION,
    FM_PART_PROJECTION, /* a field of attention: a matrix that only products read */
    FM_PART_HEADS,      /* as FM_PART_PROJECTION, with its rows reordered by the block */
    FM_PART_ROUTER,
    FM_PART_MIX,         /* the vector from which the shared expert's weight is computed */
    FM_PART_DOWN_BIAS,   /* (E, H): per expert, not per channel */
    FM_PART_MLP_GATE,    /* (D, H): even rows of mlp_gate_up */
    FM_PART_MLP_UP,      /* (D, H): odd rows */
    FM_PART_MLP_DOWN,    /* (H, D): transposed */
    FM_PART_MLP_GATE_UP, /* (2 D, H): all even rows of mlp_gate_up, then all odd ones */
    FM_PART_CARRIED,     /* not in memory: it must exist with this shape, and is only copied */
    FM_PART_SPARE,       /* as FM_PART_CARRIED, but it may be missing */
    /* The following are parts of channels of experts.  Shapes are for one expert; a tensor of all
     * experts of a layer has E in front of them (lib/block/experts.h). */
    FM_PART_GATE,         /* (I, H): the even rows of gate_up */
    FM_PART_UP,           /* (I, H): the odd rows */
    FM_PART_GATE_THEN_UP, /* (2 I, H): all even rows, then all odd ones */
    FM_PART_GATE_UP_T,    /* (H, 2 I): transposed */
    FM_PART_DOWN,         /* (H, I): transposed */
    FM_PART_GATE_UP,      /* (2 I, H): the online layout; so are the next two */
    FM_PART_DOWN_T,       /* (I, H) */
    FM_PART_BIAS          /* (2 I): biases of the rows of gate_up */
};

/* Conditions for a tensor: it exists in models and layers for which all of these hold. */
enum fm_weight_when {
    FM_ALWAYS = 0,
    FM_UNTIED = 1 << 0,    /* the LM head is not tied to the embedding */
    FM_MOE = 1 << 1,       /* a layer with experts */
    FM_DENSE = 1 << 2,     /* a layer without experts */
    FM_SHARED = 1 << 3,    /* a layer with experts and a shared expert */
    FM_HEAD_BIAS = 1 << 4, /* lm_head has a bias */
    FM_NORM_BIAS = 1 << 5, /* norms have biases */
    FM_EACH = 1 << 6,      /* each expert has its own tensors, in a family that allows both forms */
    FM_FUSED = 1 << 7,     /* one tensor has all experts of a layer, in such a family */
    FM_OWN = 1 << 8        /* this bit and those above: set by the attention block's `has` */
};

struct fm_weight {
    const char *name[FM_NAMINGS]; /* {l} and {e} stand for numbers; NULL: no such tensor under that
                                     naming */
    enum fm_weight_part part;
    size_t field;  /* offsetof in struct fm_nonlayer or fm_layer, for parts that are fields */
    char shape[4]; /* letters: V H E I, J = rows of gate_up of I channels, D width of the MLP, F =
                      2 D, S = rows of gate_up of all caps, s = sum of caps, 1; small letters except
                      s are defined by the attention block */
    unsigned when; /* bits of enum fm_weight_when */
};

/* A name that is the same in all directories, and one that exists only in checkpoints. */
#define FM_SAME(n)                                                                                 \
    {                                                                                              \
        n, n, n                                                                                    \
    }
#define FM_STOCK(n)                                                                                \
    {                                                                                              \
        n, NULL, NULL                                                                              \
    }
#define FM_LAYER_FIELD(f) offsetof(struct fm_layer, f)

/* A row for a field of struct fm_layer, with the same name in all directories. */
#define FM_LAYER_WEIGHT(n, part, f, shape, when)                                                   \
    {                                                                                              \
        FM_SAME(n), part, FM_LAYER_FIELD(f), shape, when                                           \
    }

#endif
