/*
 * One row of a family's table of tensors: what a tensor is called in each kind of directory, what
 * it becomes in memory, its shape, and in which models and layers it exists.  A block offers its
 * rows as a macro that takes the names' beginning; a family strings the macros together
 * (lib/family/family.h).  Reading, packing, exporting and counting parameters follow the table.
 */
#ifndef FM_WEIGHT_H
#define FM_WEIGHT_H

#include <stddef.h>

/* The names under which a model's tensors are stored. */
enum fm_naming {
    FM_NAMING_STOCK,  /* a checkpoint of the family, as transformers names it */
    FM_NAMING_ONLINE, /* a bundle's weights/ members, or a native export */
    FM_NAMING_RAGGED, /* a ragged export */
    FM_NAMINGS
};

/* What a tensor becomes in memory: whose it is, and how it is laid out there. */
enum fm_weight_part {
    FM_PART_NONLAYER, /* a field of struct fm_nonlayer, as it is */
    FM_PART_NORM,     /* a field of struct fm_layer, as it is, and so are the next five */
    FM_PART_ATTENTION,
    FM_PART_PROJECTION, /* the attention's too, a matrix that nothing but products reads, */
    FM_PART_HEADS,      /* and such a one with its rows in the order that the block says */
    FM_PART_ROUTER,
    FM_PART_MIX,       /* of the MLP that all tokens go through: its share */
    FM_PART_DOWN_BIAS, /* (E, H): an expert's, and no channel's */
    FM_PART_MLP_GATE,  /* (D, H): even rows of mlp_gate_up */
    FM_PART_MLP_UP,    /* (D, H): odd rows */
    FM_PART_MLP_DOWN,  /* (H, D): transposed */
    FM_PART_CARRIED,   /* nothing: it is there, of this shape, and no tool computes with it */
    FM_PART_SPARE,     /* the same, where it is there */
    /* From here on what channels of experts are made of; shapes are one expert's, in front of which
     * a tensor of all experts of a layer has E (lib/block/experts.h). */
    FM_PART_GATE,         /* (I, H): the even rows of gate_up */
    FM_PART_UP,           /* (I, H): the odd rows */
    FM_PART_GATE_THEN_UP, /* (2 I, H): all even rows, then all odd ones */
    FM_PART_GATE_UP_T,    /* (H, 2 I): transposed */
    FM_PART_DOWN,         /* (H, I): transposed */
    FM_PART_GATE_UP,      /* (2 I, H): the online layout, and so are the next two */
    FM_PART_DOWN_T,       /* (I, H) */
    FM_PART_BIAS          /* (2 I): of the rows of gate_up */
};

/* Where a tensor exists: in models and layers that have all of these. */
enum fm_weight_when {
    FM_ALWAYS = 0,
    FM_UNTIED = 1 << 0,    /* the LM head is not the embedding */
    FM_MOE = 1 << 1,       /* a layer of experts */
    FM_DENSE = 1 << 2,     /* a layer without */
    FM_SHARED = 1 << 3,    /* a layer of experts with a shared one */
    FM_HEAD_BIAS = 1 << 4, /* lm_head has a bias */
    FM_NORM_BIAS = 1 << 5, /* norms have biases */
    FM_EACH = 1 << 6,      /* each expert has tensors of its own, in a family that has both */
    FM_FUSED = 1 << 7,     /* all experts of a layer are in one, in such a family */
    FM_OWN = 1 << 8        /* this bit and those above: as the attention block's `has` says */
};

struct fm_weight {
    const char *name[FM_NAMINGS]; /* {l} and {e} stand for numbers; NULL: not under that naming */
    enum fm_weight_part part;
    size_t field;  /* offsetof in struct fm_nonlayer or fm_layer, for the parts that are one */
    char shape[4]; /* letters: V H E I, J = rows of gate_up of I channels, D width of the MLP, S =
                      rows of gate_up of all caps, s = sum of caps, 1; small letters but s are the
                      attention block's */
    unsigned when; /* bits of enum fm_weight_when */
};

/* Names that are the same everywhere, and those of a checkpoint alone. */
#define FM_SAME(n)                                                                                 \
    {                                                                                              \
        n, n, n                                                                                    \
    }
#define FM_STOCK(n)                                                                                \
    {                                                                                              \
        n, NULL, NULL                                                                              \
    }
#define FM_LAYER_FIELD(f) offsetof(struct fm_layer, f)

#endif
