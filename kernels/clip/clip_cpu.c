/*
 * libfm_clip on the CPU: plan, first product with SwiGLU, second product, combine.  A task is
 * a block of rows and columns of one group; results do not depend on the division into tasks.
 */
#include "kernels/clip/clip_device.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/clip/clip_plan.h"
#include "kernels/clip/clip_pool.h"
#include "kernels/clip/clip_tile.h"
#include "lib/base/dtype.h"
#include "lib/base/isa.h"
#include "lib/base/vector.h"

/* Rows and columns of a task: it uses about 600 KB of L2 cache. */
enum { TASK_ROWS = 192, TASK_LANES = 256, COMBINE_ROWS = 8, COMBINE_COLS = 4096 };

struct cpu_clip {
    struct fm_clip base;
    const struct fm_clip_tile *tile;
    int64_t *row0;
    int32_t *cap;
    atomic_int faults;
};

/* Scratch of one worker. */
struct scratch {
    void *panel; /* (DEPTH, LANES) float */
    float *sums; /* (TASK_ROWS, TASK_LANES) */
};

/* One chunk of tokens in progress. */
struct pass {
    const struct cpu_clip *clip;
    const struct fm_clip_call *call;
    int64_t t0; /* its first token */
    int32_t n;
    int threads;
    struct fm_clip_plan plan;
    const char *x; /* (n, H) in the tile's format, rows x_stride bytes apart */
    int64_t x_stride;
    char *h; /* (positions, cap_max), rows h_stride bytes apart */
    int64_t h_stride;
    float *z; /* (positions, H) */
    struct scratch *scratch;
    int lanes; /* columns of a task */
};

/* --- memory --- */

struct space {
    char *at; /* NULL: only count the bytes */
    uint64_t used;
};

static void *reserve(struct space *space, uint64_t count, uint64_t size)
{
    void *p = space->at ? space->at + space->used : NULL;
    space->used += (count * size + FM_CLIP_ALIGN - 1) / FM_CLIP_ALIGN * FM_CLIP_ALIGN;
    return p;
}

/* Bytes of a row of n numbers in the tile's format: bfloat16 in pairs, or float. */
static int64_t row_bytes(const struct fm_clip_tile *tile, int64_t n)
{
    return tile->pair ? (n + 1) / 2 * 4 : n * 4;
}

/* Lay out (or only count) what n tokens need. */
static void carve(struct pass *p, struct space *space, const struct fm_clip_layer *l,
                  const struct fm_clip_tile *tile, int64_t n, int32_t K, int threads)
{
    uint64_t slots = (uint64_t)n * (uint64_t)K;
    p->scratch = reserve(space, (uint64_t)threads, sizeof *p->scratch);
    for (int i = 0; i < threads; i++) {
        void *panel = reserve(space, FM_CLIP_DEPTH * FM_CLIP_LANES, sizeof(float));
        float *sums = reserve(space, TASK_ROWS * TASK_LANES, sizeof(float));
        if (space->at)
            p->scratch[i] = (struct scratch){panel, sums};
    }
    p->plan.count = reserve(space, (uint64_t)l->E + 1, sizeof *p->plan.count);
    p->plan.width = reserve(space, slots, sizeof *p->plan.width);
    p->plan.position = reserve(space, slots, sizeof *p->plan.position);
    p->plan.slot = reserve(space, slots, sizeof *p->plan.slot);
    p->plan.group = reserve(space, slots, sizeof *p->plan.group);
    p->x_stride = row_bytes(tile, l->H);
    p->x = reserve(space, l->type == FM_CLIP_F32 ? 0 : (uint64_t)n, (uint64_t)p->x_stride);
    p->h_stride = row_bytes(tile, l->cap_max);
    p->h = reserve(space, slots, (uint64_t)p->h_stride);
    p->z = reserve(space, slots * (uint64_t)l->H, sizeof *p->z);
}

static uint64_t workspace_bytes(const struct fm_clip_layer *layer, int64_t N_max, int32_t K)
{
    struct pass p;
    struct space space = {0};
    int threads = layer->threads ? layer->threads : fm_clip_pool_cpus();
    /* Rows of any tile fit where float rows do, so the answer does not depend on the instruction
     * set; if `threads` is 0, it depends on the number of CPUs. */
    carve(&p, &space, layer, fm_clip_tile_portable(), N_max, K, threads);
    return space.used;
}

/* --- one task of a product --- */

/* Rows of one product, and the location of its weights. */
struct block {
    const void *const *x; /* (rows) */
    int rows, terms;      /* terms of each sum */
    int lanes;            /* columns of this task */
    const char *weights;  /* its first column's first term */
    int64_t ld;           /* bytes from one row of weights to the next */
    bool transposed;      /* a column is a row of weights; otherwise a term is */
};

static const char *weight_at(const struct block *b, int lane, int term, int64_t size)
{
    return b->transposed ? b->weights + lane * b->ld + term * size
                         : b->weights + term * b->ld + lane * size;
}

/*
 * What to prefetch while tile `tile` of a panel is computed: its share of the lines of the next
 * panel.  Lines past the resident channels may be among them; a prefetch does not fault.
 *
 * A tile has at most FM_CLIP_DEPTH terms, and prefetches a line at each.  If a column is a row of
 * weights, the next panel is 64 rows of DEPTH elements, and tile i takes four lines of every row:
 * at term k line 4 i + (k >> 6) of row k & 63.  Otherwise it is DEPTH rows of 64 elements, and tile
 * i takes line i of every row.
 */
static struct fm_clip_ahead look_ahead(const struct block *b, int lane, int term, int tile,
                                       int64_t size)
{
    lane += FM_CLIP_LANES;
    if (lane >= b->lanes) {
        lane = 0;
        term += FM_CLIP_DEPTH;
    }
    int lines = (int)((b->transposed ? FM_CLIP_DEPTH : FM_CLIP_LANES) * size / 64);
    int each = b->transposed ? 4 : 1;
    if (term >= b->terms || tile * each >= lines)
        return (struct fm_clip_ahead){b->weights, 0, 0, 31};
    const char *at = weight_at(b, lane, term, size) + 64 * each * tile;
    return b->transposed ? (struct fm_clip_ahead){at, b->ld, FM_CLIP_LANES - 1, 6}
                         : (struct fm_clip_ahead){at, b->ld, FM_CLIP_DEPTH - 1, 31};
}

/* Multiply all rows by one panel.  They are divided evenly, so that no tile has very few rows. */
static void pass_rows(const struct block *b, const struct fm_clip_tile *tile, float *sums,
                      const void *panel, int lane, int term, int64_t size)
{
    const void *x[FM_CLIP_TILE_ROWS];
    int terms = b->terms - term < FM_CLIP_DEPTH ? b->terms - term : FM_CLIP_DEPTH;
    int tiles = (b->rows + FM_CLIP_TILE_ROWS - 1) / FM_CLIP_TILE_ROWS;
    for (int i = 0; i < tiles; i++) {
        int first = (int)((int64_t)b->rows * i / tiles);
        int rows = (int)((int64_t)b->rows * (i + 1) / tiles) - first;
        assert(rows >= 1 && rows <= FM_CLIP_TILE_ROWS);
        for (int r = 0; r < rows; r++)
            x[r] = (const char *)b->x[first + r] + (int64_t)term * (tile->pair ? 2 : 4);
        struct fm_clip_ahead ahead = look_ahead(b, lane, term, i, size);
        tile->product(sums + (size_t)first * TASK_LANES + lane, TASK_LANES, x, rows, panel, terms,
                      term == 0, &ahead);
    }
}

/* Compute sums (rows, TASK_LANES) of the block. */
static void multiply(const struct block *b, const struct fm_clip_tile *tile,
                     const struct scratch *s, int type)
{
    int64_t size = fm_clip_type_bytes(type);
    assert(b->rows <= TASK_ROWS && b->lanes <= TASK_LANES && b->terms > 0);
    if (b->rows <= FM_CLIP_TILE_ROWS && tile->few_rows) {
        (b->transposed ? tile->few_rows : tile->few_columns)(
            s->sums, TASK_LANES, b->x, b->rows, b->weights, b->ld, b->lanes, b->terms, type);
        return;
    }
    for (int term = 0; term < b->terms; term += FM_CLIP_DEPTH)
        for (int lane = 0; lane < b->lanes; lane += FM_CLIP_LANES) {
            int terms = b->terms - term < FM_CLIP_DEPTH ? b->terms - term : FM_CLIP_DEPTH;
            int lanes = b->lanes - lane < FM_CLIP_LANES ? b->lanes - lane : FM_CLIP_LANES;
            const char *src = weight_at(b, lane, term, size);
            (b->transposed ? tile->pack_rows : tile->pack_columns)(s->panel, src, b->ld, lanes,
                                                                   terms, type);
            pass_rows(b, tile, s->sums, s->panel, lane, term, size);
        }
}

/* --- tasks --- */

static int pieces(int64_t n, int size)
{
    return (int)((n + size - 1) / size);
}

/* Number the tasks of a product, whose groups have 2 width columns (first product) or H (second);
 * return how many there are. */
static int number_tasks(struct pass *p, bool second)
{
    int tasks = 0, H = p->clip->base.layer.H;
    for (int g = 0; g < p->plan.groups; g++) {
        struct fm_clip_group *group = &p->plan.group[g];
        group->task0 = tasks;
        tasks += pieces(group->rows, TASK_ROWS) *
                 pieces(second ? H : 2 * (int64_t)group->width, p->lanes);
    }
    return tasks;
}

/* Set the columns per task, fewer if there would be too few tasks for the threads, and number the
 * tasks; returns their number.  Results are the same for any number of columns. */
static int cut_tasks(struct pass *p, bool second)
{
    int tasks = 0;
    for (p->lanes = TASK_LANES; p->lanes >= FM_CLIP_LANES; p->lanes /= 2)
        if ((tasks = number_tasks(p, second)) >= 6 * p->threads || p->lanes == FM_CLIP_LANES)
            break;
    return tasks;
}

/* The rows and columns of task i. */
struct piece {
    const struct fm_clip_group *group;
    int first, rows; /* positions */
    int lane, lanes;
};

/*
 * The tasks of a group are blocks of rows and of columns, rows fastest, so that neighbours use the
 * same weights:
 *
 *                 columns 0 ..   lanes ..   2 lanes ..
 *     block 0     task0          task0 + 2  task0 + 4
 *     block 1     task0 + 1      task0 + 3  task0 + 5
 */
static struct piece find_piece(const struct pass *p, int i, bool second)
{
    const struct fm_clip_group *group = p->plan.group;
    int low = 0, high = p->plan.groups;
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        *(group[middle].task0 <= i ? &low : &high) = middle;
    }
    group += low;
    int cols = second ? p->clip->base.layer.H : 2 * group->width;
    int blocks = pieces(group->rows, TASK_ROWS), block = (i - group->task0) % blocks;
    struct piece t = {.group = group, .lane = (i - group->task0) / blocks * p->lanes};
    t.lanes = cols - t.lane < p->lanes ? cols - t.lane : p->lanes;
    t.first = (int)((int64_t)group->rows * block / blocks);
    t.rows = (int)((int64_t)group->rows * (block + 1) / blocks) - t.first;
    t.first += group->first;
    assert(t.rows > 0 && t.rows <= TASK_ROWS && t.lanes > 0 && t.lane % FM_CLIP_LANES == 0);
    return t;
}

FM_CLONES(void, swiglu, (float *restrict h, const float *restrict gu, int channels),
          (h, gu, channels))
{
    for (int j = 0; j < channels; j++) {
        float g = gu[2 * j], u = gu[2 * j + 1];
        h[j] = g / (1 + fm_expf(-g)) * u;
    }
}

FM_CLONES(void, swiglu_clamped,
          (float *restrict h, const float *restrict gu, int channels, float alpha, float limit),
          (h, gu, channels, alpha, limit))
{
    for (int j = 0; j < channels; j++) {
        float g = gu[2 * j], u = gu[2 * j + 1];
        g = g > limit ? limit : g; /* NaN is kept */
        u = u > limit ? limit : u < -limit ? -limit : u;
        h[j] = g / (1 + fm_expf(-alpha * g)) * (u + 1);
    }
}

FM_CLONES(void, add_bias, (float *restrict y, const float *restrict b, int n), (y, b, n))
{
    for (int i = 0; i < n; i++)
        y[i] += b[i];
}

/* Compute h (channels) from a row's sums. */
static void inner(float *h, const float *gu, int channels, const struct fm_clip_layer *l)
{
    if (l->activation == FM_CLIP_SILU)
        swiglu(h, gu, channels);
    else
        swiglu_clamped(h, gu, channels, l->alpha, l->limit);
}

/* Sums of gate and up become inner activations, in the format that the second product reads. */
static void activate(const struct pass *p, const struct piece *t, float *sums)
{
    const struct fm_clip_layer *l = &p->clip->base.layer;
    float wide[TASK_LANES / 2], bias[TASK_LANES];
    int channels = t->lanes / 2, end = (t->lane + t->lanes) / 2;
    assert(t->lane % 2 == 0 && t->lanes % 2 == 0); /* a gate is never parted from its up */
    if (l->gate_up_bias)
        fm_clip_widen(bias, l->gate_up_bias, 2 * p->clip->row0[t->group->expert] + t->lane,
                      t->lanes, l);
    for (int r = 0; r < t->rows; r++) {
        char *row = p->h + (t->first + r) * p->h_stride;
        float *gu = sums + (size_t)r * TASK_LANES;
        if (l->gate_up_bias)
            add_bias(gu, bias, t->lanes);
        if (!p->clip->tile->pair) {
            inner((float *)row + t->lane / 2, gu, channels, l);
            continue;
        }
        uint16_t *h = (uint16_t *)row;
        inner(wide, gu, channels, l);
        fm_dtype_from_f32(h + t->lane / 2, wide, FM_BF16, (size_t)channels);
        if (end == t->group->width && end % 2)
            h[end] = 0; /* the other half of the last pair */
    }
}

static void run_first(void *arg, int i, int worker)
{
    const struct pass *p = arg;
    const struct fm_clip_layer *l = &p->clip->base.layer;
    struct piece t = find_piece(p, i, false);
    const struct scratch *s = &p->scratch[worker];
    const void *x[TASK_ROWS];
    for (int r = 0; r < t.rows; r++)
        x[r] = p->x + p->plan.slot[t.first + r] / p->call->K * p->x_stride;
    int64_t ld = (int64_t)l->H * fm_clip_type_bytes(l->type);
    struct block b = {.x = x, .rows = t.rows, .terms = l->H, .lanes = t.lanes, .ld = ld};
    b.weights = (const char *)l->gate_up + (2 * p->clip->row0[t.group->expert] + t.lane) * ld;
    b.transposed = true;
    multiply(&b, p->clip->tile, s, l->type);
    activate(p, &t, s->sums);
}

static void run_second(void *arg, int i, int worker)
{
    const struct pass *p = arg;
    const struct fm_clip_layer *l = &p->clip->base.layer;
    struct piece t = find_piece(p, i, true);
    const struct scratch *s = &p->scratch[worker];
    const void *x[TASK_ROWS];
    for (int r = 0; r < t.rows; r++)
        x[r] = p->h + (t.first + r) * p->h_stride;
    int64_t size = fm_clip_type_bytes(l->type), ld = l->H * size;
    struct block b = {.x = x, .rows = t.rows, .terms = t.group->width, .lanes = t.lanes, .ld = ld};
    b.weights = (const char *)l->down + p->clip->row0[t.group->expert] * ld + t.lane * size;
    multiply(&b, p->clip->tile, s, l->type);
    for (int r = 0; r < t.rows; r++)
        memcpy(p->z + (int64_t)(t.first + r) * l->H + t.lane, s->sums + (size_t)r * TASK_LANES,
               (size_t)t.lanes * sizeof(float));
}

FM_CLONES(void, add_scaled, (float *restrict y, const float *restrict z, float w, int n),
          (y, z, w, n))
{
    for (int i = 0; i < n; i++)
        y[i] += w * z[i];
}

/* Compute columns [first, first + n) of one token's row. */
static void combine(const struct pass *p, int32_t t, int first, int n, float *sum)
{
    const struct fm_clip_call *c = p->call;
    const struct fm_clip_layer *l = &p->clip->base.layer;
    int64_t size = fm_clip_type_bytes(l->type);
    char *out = (char *)c->out + ((p->t0 + t) * c->out_stride + first) * size;
    float *y = l->type == FM_CLIP_F32 ? (float *)out : sum;
    memset(y, 0, (size_t)n * sizeof *y);
    for (int32_t s = t * c->K; s < (t + 1) * c->K; s++) {
        float weight = c->weights[p->t0 * c->K + s];
        int32_t e = l->down_bias ? fm_clip_plan_expert(l, c, p->t0 * c->K + s) : -1;
        if (p->plan.position[s] >= 0)
            add_scaled(y, p->z + (int64_t)p->plan.position[s] * l->H + first, weight, n);
        if (e < 0)
            continue;
        fm_clip_widen(sum + COMBINE_COLS, l->down_bias, (int64_t)e * l->H + first, n, l);
        add_scaled(y, sum + COMBINE_COLS, weight, n);
    }
    if (l->type != FM_CLIP_F32)
        fm_dtype_from_f32(out, y, fm_clip_dtype(l->type), (size_t)n);
}

static void run_combine(void *arg, int i, int worker)
{
    const struct pass *p = arg;
    int H = p->clip->base.layer.H;
    int32_t end = (i + 1) * COMBINE_ROWS < p->n ? (i + 1) * COMBINE_ROWS : p->n;
    for (int32_t t = i * COMBINE_ROWS; t < end; t++)
        for (int first = 0; first < H; first += COMBINE_COLS)
            combine(p, t, first, H - first < COMBINE_COLS ? H - first : COMBINE_COLS,
                    p->scratch[worker].sums);
}

/* Convert rows of hidden, F16 or BF16, to the tile's format. */
static void run_convert(void *arg, int i, int worker)
{
    const struct pass *p = arg;
    const struct fm_clip_layer *l = &p->clip->base.layer;
    int32_t end = (i + 1) * COMBINE_ROWS < p->n ? (i + 1) * COMBINE_ROWS : p->n;
    (void)worker;
    for (int32_t t = i * COMBINE_ROWS; t < end; t++) {
        const uint16_t *from =
            (const uint16_t *)p->call->hidden + (p->t0 + t) * p->call->hidden_stride;
        char *to = (char *)p->x + t * p->x_stride;
        if (p->clip->tile->pair) {
            memset(to + p->x_stride - 4, 0, 4);
            memcpy(to, from, (size_t)l->H * 2);
        } else {
            fm_dtype_to_f32((float *)to, from, fm_clip_dtype(l->type), (size_t)l->H);
        }
    }
}

/* --- the driver --- */

static int32_t run_pass(struct pass *p)
{
    const struct fm_clip_layer *l = &p->clip->base.layer;
    int32_t faults = fm_clip_plan_make(&p->plan, l, p->clip->cap, p->call, p->t0, p->n);
    if (l->type == FM_CLIP_F32) {
        p->x_stride = p->call->hidden_stride * 4;
        p->x = (const char *)p->call->hidden + p->t0 * p->x_stride;
    } else {
        fm_clip_pool_for(p->threads, pieces(p->n, COMBINE_ROWS), run_convert, p);
    }
    fm_clip_pool_for(p->threads, cut_tasks(p, false), run_first, p);
    fm_clip_pool_for(p->threads, cut_tasks(p, true), run_second, p);
    fm_clip_pool_for(p->threads, pieces(p->n, COMBINE_ROWS), run_combine, p);
    return faults;
}

static int32_t forward(struct fm_clip *clip, const struct fm_clip_call *call,
                       struct fm_clip_error *error)
{
    struct cpu_clip *c = (struct cpu_clip *)clip;
    int threads = clip->layer.threads; /* set by fm_clip_prepare if the caller gave none */
    int64_t chunk = fm_clip_chunk(&clip->layer, call->N, call->K, call->workspace_bytes);
    (void)error;
    assert(chunk > 0); /* clip.c refuses a workspace that is too small for one token */
    for (int64_t t0 = 0; t0 < call->N; t0 += chunk) {
        struct space space = {.at = call->workspace};
        struct pass p = {.clip = c, .call = call, .t0 = t0};
        p.n = (int32_t)(call->N - t0 < chunk ? call->N - t0 : chunk);
        p.threads = call->threads && call->threads < threads ? call->threads : threads;
        carve(&p, &space, &clip->layer, c->tile, p.n, call->K, threads);
        assert(space.used <= call->workspace_bytes);
        atomic_fetch_or(&c->faults, run_pass(&p));
    }
    return FM_CLIP_OK;
}

static void release(struct fm_clip *clip)
{
    struct cpu_clip *c = (struct cpu_clip *)clip;
    free(c->row0);
    free(c->cap);
    free(c);
}

static int32_t available(struct fm_clip_error *error)
{
    const char *mistake = fm_isa_mistake();
    if (mistake)
        return fm_clip_fail(error, FM_CLIP_EUSAGE,
                            "the environment variable FM_ISA is '%.32s'; it must be base, avx2, "
                            "avx512 or amx",
                            mistake);
    return FM_CLIP_OK;
}

static int32_t prepare(struct fm_clip **clip, const struct fm_clip_layer *layer,
                       struct fm_clip_error *error)
{
    int32_t code = available(error);
    if (code == FM_CLIP_OK)
        code = fm_clip_check_rows(layer, layer->row0, layer->cap, error);
    if (code != FM_CLIP_OK)
        return code;
    const struct fm_clip_tile *tile = fm_clip_tile_choose(layer->path, layer->type);
    if (!tile)
        return fm_clip_fail(error, FM_CLIP_EDEVICE,
                            "path %d is not supported on this CPU with type %d", (int)layer->path,
                            (int)layer->type);
    struct cpu_clip *c = calloc(1, sizeof *c);
    size_t E = (size_t)layer->E;
    if (c) {
        c->row0 = malloc(E * sizeof *c->row0);
        c->cap = malloc(E * sizeof *c->cap);
    }
    if (!c || !c->row0 || !c->cap) {
        if (c)
            release(&c->base);
        return fm_clip_fail(error, FM_CLIP_ENOMEM, "no memory for a layer of %d experts",
                            (int)layer->E);
    }
    memcpy(c->row0, layer->row0, E * sizeof *c->row0);
    memcpy(c->cap, layer->cap, E * sizeof *c->cap);
    c->tile = tile;
    static const char *const names[] = {"f32", "f16", "bf16"};
    snprintf(c->base.name, sizeof c->base.name, "cpu %s %s%s", c->tile->name, names[layer->type],
             layer->type == FM_CLIP_F32 || c->tile->pair ? "" : " widened");
    fm_clip_pool_want(layer->threads);
    *clip = &c->base;
    return FM_CLIP_OK;
}

static int32_t status(struct fm_clip *clip, struct fm_clip_error *error)
{
    (void)error;
    return atomic_exchange(&((struct cpu_clip *)clip)->faults, 0);
}

const struct fm_clip_driver fm_clip_cpu = {available,       prepare, release,
                                           workspace_bytes, forward, status};
