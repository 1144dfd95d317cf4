/*
 * Pieces of planned tensors: what the writer of an export makes, and fm-verify compares, in one go.
 * The bytes are made from the bundle and checked at the same time: every segment of an expert, and
 * every other tensor, has a digest in the bundle.
 */
#ifndef FM_PIECE_H
#define FM_PIECE_H

#include "lib/export/planned.h"
#include "lib/move/move.h"
#include "lib/run/taskgroup.h"

/* Bytes that one task reads: enough to amortise a system call and a seek, and few enough that each
 * thread needs little memory. */
#define FM_PIECE_BYTES ((uint64_t)4 << 20)

/* A range of a tensor's bytes, made in one go: for experts, a range of channels of one block.  A
 * block without channels, such as a factor for a whole matrix, is a single piece. */
struct fm_piece {
    const struct fm_planned_tensor *tensor;
    const struct fm_planned_block *block; /* NULL: not of experts */
    uint64_t from, size;                  /* in the tensor */
    uint64_t source; /* offset of what it is made from in the bundle; of experts: the channels
                        [first, first + n) of a part, in its first plane */
    uint32_t first, n;
    int group; /* number of pieces that are made from the same channels, from this one on; 0: not
                  the first of them */
    char *to;  /* in a stream: where its bytes are made */
};

/* The piece of a tensor from byte `at` on, which is 0 or the end of a piece.  If possible it is
 * made from at most `limit` bytes: decoded values are cut anywhere; channels only at boundaries of
 * segments, or without checksums of channel groups, and not at all if they are rounded or columns;
 * other tensors not at all, because one digest covers all their bytes. */
struct fm_piece fm_piece_next(const struct fm_exportplan *p, const struct fm_planned_tensor *t,
                              uint64_t at, uint64_t limit);
/* Sort pieces by source, and find their groups. */
void fm_piece_group(struct fm_piece *piece, size_t n);
/* Upper bound of the memory for a piece and for what it is made from. */
uint64_t fm_piece_memory(const struct fm_exportplan *p, const struct fm_piece *x);

/*
 * Make a piece.  For each piece of a group, fm_piece_read reads the channels *c, all zero before
 * the first, in scratch; fm_piece_bytes makes the bytes, in scratch or in *c.  The family is open
 * with FM_OPENED_WEIGHTS, unless the tensor is numbers, which need no weights.  If it is also open
 * with FM_OPENED_CHECKSUMS, FM_EFORMAT names the expert and the channels that do not match their
 * digest.  Not for a copy, which need not be in memory as a whole.
 */
int fm_piece_read(struct fm_channels *c, const struct fm_exportplan *p, const struct fm_piece *x,
                  struct fm_err *err);
int fm_piece_bytes(const void **bytes, const struct fm_channels *c, const struct fm_exportplan *p,
                   const struct fm_piece *x, struct fm_err *err);
/* Whether a block has the bytes of the bundle, in another order. */
bool fm_piece_moved(const struct fm_exportplan *p, const struct fm_planned_block *b);

/* Where the bytes of a tensor go, in order, from `offset` on, until `tasks` are stopped. */
struct fm_piece_sink {
    struct fm_taskgroup *tasks;
    int (*put)(void *self, uint64_t at, const void *bytes, size_t size, struct fm_err *err);
    void *self;
    uint64_t offset;
};
/* Read a tensor of the bundle in order, pass it on unless `to` is NULL, and compare it with its
 * checksum. */
int fm_piece_copy(const struct fm_exportplan *p, const struct fm_opened_tensor *from,
                  const struct fm_piece_sink *to, struct fm_err *err);

/* A tensor that is wider in the export: its own rows, one after another and with padding after
 * each.  The padding is the byte `blank`, or repeats the last `again` bytes. */
struct fm_widened {
    struct fm_box own, padding; /* rows are groups */
    struct fm_form narrow, wide;
    size_t again;
    int blank;
};
struct fm_widened fm_piece_widened(const struct fm_planned_tensor *t);
void fm_piece_widen(char *to, const char *own, const struct fm_widened *w);

#endif
