/*
 * Writes a planned export as a directory or as a tar stream.  The bytes of a planned tensor are
 * made from the bundle and checked at the same time: every segment of an expert, and every other
 * tensor, has a digest in the bundle.
 */
#ifndef FM_EXPORTWRITER_H
#define FM_EXPORTWRITER_H

#include "lib/export/plan.h"
#include "lib/run/run.h"

/* Write all files of the plan: as the new directory run->outputs.path, whole or not at all, or,
 * if that is "-", as a tar stream on standard output.  Also uses threads, force, progress and
 * stop of run. */
int fm_exportwriter_write(const struct fm_exportplan *plan, const struct fm_run_options *run,
                          struct fm_err *err);

/* Peak bytes of the plan and buffers, for a directory or for a stream. */
uint64_t fm_exportwriter_memory(const struct fm_exportplan *plan, bool stream);

/* ---- the bytes of a tensor ---- */

/* Bytes that one task reads: enough to amortise a system call and a seek, and few enough that each
 * thread needs little memory. */
#define FM_EXPORTWRITER_PIECE ((uint64_t)4 << 20)

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
struct fm_piece fm_exportwriter_next(const struct fm_exportplan *p,
                                     const struct fm_planned_tensor *t, uint64_t at,
                                     uint64_t limit);
/* Sort pieces by source, and find their groups. */
void fm_exportwriter_group(struct fm_piece *piece, size_t n);

/*
 * Make a piece.  For each piece of a group, fm_exportwriter_take reads the channels *c, all zero
 * before the first, in scratch; fm_exportwriter_give makes the bytes, in scratch or in *c.  The
 * family is open with FM_OPENED_WEIGHTS, unless the tensor is numbers, which need no weights.  If
 * it is also open with FM_OPENED_CHECKSUMS, FM_EFORMAT names the expert and the channels that do
 * not match their digest.  Not for a copy, which need not be in memory as a whole.
 */
int fm_exportwriter_take(struct fm_channels *c, const struct fm_exportplan *p,
                         const struct fm_piece *x, struct fm_err *err);
int fm_exportwriter_give(const void **bytes, const struct fm_channels *c,
                         const struct fm_exportplan *p, const struct fm_piece *x,
                         struct fm_err *err);
/* Whether a block has the bytes of the bundle, in another order. */
bool fm_exportwriter_moved(const struct fm_exportplan *p, const struct fm_planned_block *b);

/* A tensor that is wider in the export: its own rows, one after another and with
 * padding after each.  The padding is the byte `blank`, or repeats the last `again` bytes. */
struct fm_widened {
    struct fm_box own, padding; /* rows are groups */
    struct fm_form narrow, wide;
    size_t again;
    int blank;
};
struct fm_widened fm_exportwriter_widened(const struct fm_planned_tensor *t);
void fm_exportwriter_widen(char *to, const char *own, const struct fm_widened *w);

#endif
