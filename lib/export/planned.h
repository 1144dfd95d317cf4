/*
 * What is planned for an export: widths, tensors, the bytes of the bundle that fill them, and
 * files.  exportplan.c, the layouts and the writers of texts build the lists in this order:
 *
 *     member --level, round, store--> widths: kept <= stored <= I        of every expert
 *                                        |  layout->experts, fm_tensors_rest
 *                                        v
 *     file      | header | tensor | tensor | tensor | ...                layout->files, or shards
 *                             |
 *     tensor    | block | block | block | ...                            or none
 *                    |
 *     block     | kept channels | stored, but not kept: blank |          a cut of one expert
 *
 * Tensors are in the order in which they were added until all are known; then by name, for
 * fm_planned_place; then by file and offset, the order in which the writer goes through them.
 *
 * Invariants:
 *   1. Of every expert, kept <= stored <= I.
 *   2. packed describes the experts of all layers as they are in the files, and stored is a whole
 *      number of its groups.
 *   3. The blocks of a tensor are contiguous, in the list and in the tensor, and fill it.
 *   4. Every tensor is in one weight file, whose tensors are contiguous in the list; their bytes
 *      fill the file after its header.
 *   5. If weight_files > 0, tensors and these files are those of the widths planned_for; a member
 *      with other widths plans them again.
 *   6. No two tensors and no two files have the same name.
 */
#ifndef FM_PLANNED_H
#define FM_PLANNED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/export/exportoptions.h"
#include "lib/export/opened.h"
#include "lib/model/source.h"

/*
 * A block is one cut (lib/block/experts.h) of one expert: its first channels, followed by zeros. In
 * blocks of codes and scales the added channels have code zero and the expert's own scales.  Scales
 * that belong to no channel, and the factors of scales, are a block as well.  The source is a range
 * of the bundle, every second row of a range (FM_PART_GATE and FM_PART_UP), or a range transposed.
 * If gate and up have separate blocks, the block of up is later in the list than that of gate:
 * directly after it, unless they are codes or scales.
 */
struct fm_planned_block {
    size_t tensor;      /* its index in the plan */
    uint64_t at, bytes; /* offset in that tensor, and size */
    int m, e;           /* index of the layer in config.moe; expert */
    enum fm_weight_part part;
    int plane; /* plane of the codes, or FM_PLANES: the factors of scales; -1: unquantised */
};

/* What the bytes of a tensor are: a case here, in piece.c, which makes them, and in
 * lib/verify/verify_weights.c, which checks them. */
enum fm_planned_kind {
    FM_PLANNED_NUMBERS, /* `number` */
    FM_PLANNED_EXPERTS, /* blocks of experts, one after another */
    FM_PLANNED_COPY,    /* those of `from` */
    FM_PLANNED_DECODED, /* the values of `from`, which is codes, rounded once */
    FM_PLANNED_WIDENED, /* of the shared expert: `from`, or its values, with padding: `widen` */
    FM_PLANNED_NARROWED /* of experts for multi-token prediction: the first channel groups of
                           `from`, or of its values, in ranked order: `narrow` */
};

struct fm_planned_tensor {
    struct fm_tensor t; /* name owned; offset is that in its file */
    size_t file;
    int m; /* index of the layer in config.moe; -1: none */
    enum fm_planned_kind kind;
    size_t block, blocks;                /* experts: the first block, and the number; else 0 */
    const struct fm_opened_tensor *from; /* the tensor of the bundle; numbers, experts: NULL */
    bool decoded;                        /* `from` has codes; their values are used */
    union {
        int64_t number[2]; /* the elements */
        struct fm_planned_widen {
            int dimension; /* that grows */
            uint64_t by;   /* elements, at least 1 */
            size_t again;  /* bytes of the last scale, which the padding repeats; 0: it repeats
                              `blank` */
            int blank;     /* the byte of the padding */
        } widen;
        struct fm_planned_narrow {
            int dimension; /* that has the channel groups */
            int expert;    /* -1: all experts, one after another */
            int matrices;  /* of each expert: 2 for gate and up in one tensor */
        } narrow;
    };
};

struct fm_planned_file {
    char name[128];
    char *header; /* the whole file, or the header of a weight file; owned; NULL: the file is
                     carried */
    uint64_t header_bytes, bytes;
    const struct fm_member *carried; /* the member of the bundle that is copied */
    bool weights;
    size_t tensor, tensors; /* the first of its tensors, and their number */
};

struct fm_planned_widths {
    uint32_t *kept;             /* (M, E): channels of every expert that the export computes with */
    uint32_t *stored;           /* (M, E): channels in the files; those past widths.kept are zero */
    uint32_t widest;            /* the largest of `stored` */
    bool full;                  /* files hold every channel of the model, whatever the mask says */
    int shared;                 /* channels of the shared expert in the files */
    uint64_t by_layout, by_pad; /* channels kept beyond the mask, by reason: see struct
                                   fm_export_report */
};

/* Code of an export, and what it left out or kept of the author's files (lib/export/trust.h). */
enum fm_code_fate {
    FM_CODE_OURS,   /* the suite's modelling file */
    FM_CODE_LEFT,   /* left out: code, or a key that makes a program load code or another model */
    FM_CODE_KEPT,   /* code or such a key, kept because of options.allow_code */
    FM_CODE_UNKNOWN /* a key of config.json that neither family nor layout defines, left out */
};

#define FM_CODE_NAME_BYTES 192
#define FM_CODES_MAX 256

struct fm_planned_code {
    struct fm_code_item {
        enum fm_code_fate fate;
        char name[FM_CODE_NAME_BYTES]; /* "helper.py", "tokenizer_config.json: auto_map" */
    } * item;
    size_t items, capacity;
    bool tokenizer; /* some of the code that was left out belongs to the tokenizer */
};

/* How an export has weights that its bundle has as codes, or that are rounded to codes. */
enum fm_coded {
    FM_CODED_NONE,    /* as values */
    FM_CODED_ALL,     /* all codes of the bundle, described by its quantization_config */
    FM_CODED_EXPERTS, /* codes only of experts, kept or rounded, for our modelling file */
    FM_CODED_ROUNDED  /* experts rounded to a format that servers read */
};

struct fm_exportplan {
    const struct fm_opened *from;     /* borrowed */
    struct fm_export_options options; /* its pointers are borrowed */
    int first, last;                  /* the members from which one is exported, or that the export
                                         holds */
    int index;                        /* the current member */
    struct fm_planned_widths widths;
    struct fm_planned_tensor *tensor; /* in order of file, then offset */
    size_t tensors, tensor_room;
    struct fm_planned_block *block;
    size_t blocks, block_room;
    struct fm_planned_file *file; /* weight files and their index, then texts */
    size_t files, file_room;
    size_t weight_files;   /* number of weight files, with their index; 0: not planned yet */
    uint32_t *planned_for; /* (M, E): widths.stored when the weight files were planned */
    struct fm_planned_code code;
    enum fm_coded coded;
    uint32_t multiple; /* of widths: as training, the layout's kernels and the codes require */
    bool codes;        /* experts keep the codes and scales of the bundle */
    struct fm_packed_layers packed; /* the experts of the export: values or codes */
    struct fm_config rounded;       /* with options.quantise: the model of the export; the values it
                                       points to are borrowed */
    const char *wrapped; /* prefix of tensors (fm_hftext_wrapped) if the export is the multimodal
                            checkpoint; NULL: it is only its text model */
    bool narrowed;  /* the experts of a layer for multi-token prediction get the layout's width */
    int32_t *ahead; /* (E, I): the order of their channel groups; NULL without a bundle */
    char *family;   /* fm_family of config.json, the same for all members; NULL: not made yet */
};

void fm_planned_release(struct fm_exportplan *p); /* zeroed struct is fine */
/* Keep the first `files` files: the weight files with their index, or 0 to remove the tensors,
 * too. */
void fm_planned_forget(struct fm_exportplan *p, size_t files);

/*
 * For asserts of a DEBUG build: true if widths kept are at most those stored, and these at most I,
 * and if the tensors of each file, and the blocks of each tensor, are contiguous and in order.
 */
bool fm_planned_sane(const struct fm_exportplan *p);

/* ---- properties ---- */

/* Bytes of all weight files; of all files. */
uint64_t fm_planned_weight_bytes(const struct fm_exportplan *p);
uint64_t fm_planned_bytes(const struct fm_exportplan *p);
/* Bytes of `channels` channels in a block, whole channel groups if it has codes. */
uint64_t fm_planned_unit_bytes(const struct fm_exportplan *p, const struct fm_planned_block *b,
                               uint64_t channels);
/* Where the first `channels` channels of a block are, if it has `stored`: in the block, and in the
 * bundle's form of its part, in which a plane has the storage of `packed`. */
struct fm_packed_forms fm_planned_forms(const struct fm_exportplan *p,
                                        const struct fm_planned_block *b, uint64_t channels,
                                        uint64_t stored);
/* Bytes of that many channels of experts, with everything that belongs to them; for codes, whole
 * channel groups. */
uint64_t fm_planned_channel_bytes(const struct fm_exportplan *p, uint64_t channels);
/* Whether the block has channels; else it is numbers that belong to a whole matrix. */
bool fm_planned_has_channels(const struct fm_exportplan *p, const struct fm_planned_block *b);
/* Channels of a block: its expert's channels; for scales, kept equals stored. */
uint32_t fm_planned_kept(const struct fm_exportplan *p, const struct fm_planned_block *b);
uint32_t fm_planned_stored(const struct fm_exportplan *p, const struct fm_planned_block *b);
/* The value of each byte of a block's channels that are stored but not kept. */
int fm_planned_blank(const struct fm_exportplan *p, const struct fm_planned_block *b);
/* Number of channels in the files, of the m-th layer of experts and of all. */
uint64_t fm_planned_layer_channels(const struct fm_exportplan *p, int m);
uint64_t fm_planned_channels_all(const struct fm_exportplan *p);
/* Number of channels of the model that are not kept. */
uint64_t fm_planned_freed(const struct fm_exportplan *p);
/* True if the export computes what the masks do, so that their figures are those of the export:
 * every expert has the mask's width, and no expert is rounded. */
bool fm_planned_as_measured(const struct fm_exportplan *p);
/* True if weight files are more than 2 % larger than `source` bytes; the margin allows for headers
 * and longer names. */
bool fm_planned_larger(const struct fm_exportplan *p, uint64_t source);
/* The fraction of removed channels from which weight files are smaller than `source` bytes: at
 * most 0 if they always are, more than 1 if they never are. */
double fm_planned_break_even(const struct fm_exportplan *p, uint64_t source);
/* With options.quantise: the quantization_config of the export, without braces and without the list
 * of modules that are not quantised; and the key of that list.  NULL: the format does not support
 * the family's experts. */
const char *fm_planned_format(const struct fm_exportplan *p, const char **list);

/* *header: the bytes of file i before its tensors, file[i].header_bytes of them.  Those of a
 * carried file are read from the bundle and checked; free(*owned), which is NULL for all others. */
int fm_planned_header(const struct fm_exportplan *p, size_t i, const char **header, char **owned,
                      struct fm_err *err);

/* ---- for layouts and texts: adding ---- */

/* Add a tensor; `like` is copied, including its name.  Dtype, shape, m, kind and the fields of its
 * kind must be set. */
int fm_planned_add_tensor(struct fm_exportplan *p, const struct fm_planned_tensor *like,
                          struct fm_err *err);
/* Add a tensor of experts [first, first + n) of the m-th layer: from each, the cuts of `part`, in a
 * plane of codes or as values (-1).  Blocks that have no channels are equal shares of the tensor.
 */
int fm_planned_add_experts(struct fm_exportplan *p, int m, const struct fm_tensor *t, int first,
                           int n, enum fm_weight_part part, int plane, struct fm_err *err);
/* Add a file; takes ownership of header, even on failure. */
int fm_planned_add_file(struct fm_exportplan *p, const char *name, char *header,
                        uint64_t header_bytes, uint64_t bytes, bool weights, struct fm_err *err);
/* Add a text as a file; releases it. */
int fm_planned_add_text(struct fm_exportplan *p, const char *name, struct fm_text *t,
                        struct fm_err *err);
/* Put the tensor named placed->name into file `file`, with the offset and size of `placed`; the
 * tensors of the plan must be in order of name. */
void fm_planned_place(struct fm_exportplan *p, const struct fm_tensor *placed, size_t file);

#define FM_EXPORT_CARD "README.md"
#define FM_EXPORT_CARD_MAX ((size_t)4 << 20) /* the largest card that is read */
#define FM_EXPORT_MODELING "modeling_fm.py"

#endif
