/*
 * libfm_clip: the expert FFN of one mixture-of-experts layer, clipped to any member of its family.
 * The ranked weights stay in place; a budget selects a row of widths, and a server switches budgets
 * by writing one number.
 *
 *     out[t] = round( sum over slots j, in order, of weights[t,j] * z[t,j] ),      sums in float32
 *     z[t,j] = sum over c < k of silu(gate_c . x) (up_c . x) down_c
 *
 * with x = hidden[t], e = ids[t,j] - e0, k = widths[b, e] and b the current budget.  With biases
 * and FM_CLIP_SWIGLU_CLAMPED, on the CPU only,
 *
 *     g = min(gate_c . x + its bias, limit),  u = up_c . x + its bias, clamped to [-limit, limit]
 *     z[t,j] = bias of down_e + sum over c < k of (u + 1) g sigmoid(alpha g) down_c
 *
 * A slot whose id is -1 or outside [e0, e0 + E) contributes nothing: use this for expert
 * parallelism and for padded rows.  A slot of width 0 contributes only its expert's down_bias.  (If
 * the channels of an expert are distributed over ranks, pass the bias on only one rank.)  Duplicate
 * ids add.  The caller computes shared experts, the router and the sum over ranks.
 *
 * The bits of a row of `out` depend only on that row's hidden, ids, weights and widths: not on N,
 * on other rows, on the workspace or on the number of threads; repeating a call gives identical
 * results.  (On CUDA the bits also depend on which experts have more than 64 rows in the whole
 * call: the sums of these experts are computed in one piece, those of others in pieces of up to
 * 2048 channels.)  A NaN affects only its own row.
 *
 * Weights are flat, so ragged and elastic exports have the same form.  Channel c of local expert e
 * is row r = row0[e] + c of `down` (channels, H), and rows 2 r (gate) and 2 r + 1 (up) of `gate_up`
 * (2 channels, H).  cap[e] channels are resident; nothing at or past cap[e] is read, so a
 * caller may load each expert to the widest width its budgets use and free the tail.
 *
 * One header serves CPU and CUDA: `device` in the layer selects one, and then every pointer in that
 * layer and in its calls points to memory of that device (the descriptors themselves are in host
 * memory).  On CUDA a call only enqueues work on the caller's stream: it neither allocates nor
 * waits, and may be captured in a graph; widths and budget are read when the work runs, so a
 * replayed graph uses their current values.  On the CPU a call returns when `out` is written and
 * does not allocate.
 *
 * Threads: one layer may be called from several threads at once with different workspaces. A
 * process that forks must prepare again in the child to have threads there; calls before that run
 * on the calling thread.
 *
 * Structs have no implicit padding and the same layout on every 64-bit machine (offsets are written
 * at the fields).  New fields are added only at the end, and 0 in them means the former behaviour;
 * `size` is the size known to the caller.  A shorter struct, down to the FM_CLIP_*_SIZE_MIN of its
 * kind, is read as if the missing fields were 0.  A longer one, of a newer header, is accepted if
 * all bytes unknown to this library are 0, and refused otherwise.  `size` is a multiple of
 * FM_CLIP_SIZE_STEP, as is the sizeof of every such struct.  Reserved fields are zero.
 */
#ifndef FM_CLIP_H
#define FM_CLIP_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define FM_CLIP_API __attribute__((visibility("default")))
#else
#define FM_CLIP_API
#endif

/* Changes when callers built against an older header would no longer work. */
#define FM_CLIP_ABI 1

/* Results of functions; the values are those of the tools' exit statuses (fm(7)). */
enum fm_clip_code {
    FM_CLIP_OK = 0,
    FM_CLIP_EUSAGE = 2,   /* an argument is invalid: the message says which */
    FM_CLIP_EDEVICE = 69, /* this library or machine does not support that device or shape */
    FM_CLIP_ENOMEM = 71
};

enum fm_clip_device { FM_CLIP_CPU = 0, FM_CLIP_CUDA = 1 };

enum fm_clip_type {
    FM_CLIP_F32 = 0,
    FM_CLIP_F16 = 1,
    FM_CLIP_BF16 = 2,
    FM_CLIP_I32 = 3,
    FM_CLIP_I64 = 4
};

enum fm_clip_activation {
    FM_CLIP_SILU = 0,
    FM_CLIP_SWIGLU_CLAMPED = 1 /* CPU; with alpha and limit */
};

/* The code path, for tests and measurements; prepare refuses one that the machine or shape does not
 * support.  NAIVE and BUCKET are baselines for measurements: their calls allocate, wait for the
 * device (so no graph can capture them) and may give different bits each time, and a layer may be
 * used by only one call at a time. */
enum fm_clip_path {
    FM_CLIP_BEST = 0,
    FM_CLIP_PORTABLE = 1, /* CPU: no fused multiply-add */
    FM_CLIP_AVX2 = 2,
    FM_CLIP_AVX512 = 3, /* F32, and F16 and BF16 widened; bit-identical to AVX2 */
    FM_CLIP_AVX512_BF16 = 4,
    FM_CLIP_NAIVE = 16,  /* CUDA: expert by expert */
    FM_CLIP_BUCKET = 17, /* CUDA: grouped products by width */
    FM_CLIP_MMA = 18     /* CUDA: sm_80 and newer */
};

/* Faults in the data of a call, which corrects them and continues; fm_clip_status reports them. */
enum fm_clip_fault {
    FM_CLIP_FAULT_WIDTH = 1, /* a width outside [0, cap] was clamped */
    FM_CLIP_FAULT_BUDGET = 2 /* a budget outside [0, B) was clamped; NaN became 0 */
};

/* The smallest `size`: later fields default to 0. */
#define FM_CLIP_LAYER_SIZE_MIN 104 /* offset of path */
#define FM_CLIP_CALL_SIZE_MIN 96   /* offset of stream */
#define FM_CLIP_SIZE_MAX 4096      /* of either */
#define FM_CLIP_SIZE_STEP 8

/* One layer.  The memory it points to must stay valid and in place until fm_clip_release. */
struct fm_clip_layer {
    uint32_t size;         /*   0: sizeof (struct fm_clip_layer) */
    int32_t device;        /*   4: enum fm_clip_device */
    int32_t ordinal;       /*   8: which CUDA device; 0 on the CPU */
    int32_t type;          /*  12: F32, F16 or BF16: of weights, biases, hidden and out */
    int32_t activation;    /*  16: enum fm_clip_activation */
    int32_t H;             /*  20: hidden width, 1 .. 2^20 */
    int32_t E;             /*  24: experts here, 1 .. 65536 */
    int32_t e0;            /*  28: id of the first of them */
    int32_t B;             /*  32: rows of widths, 1 .. 65536 */
    int32_t cap_max;       /*  36: no cap is larger; 0 .. 2^24 */
    int64_t channels;      /*  40: rows of down */
    const void *gate_up;   /*  48: (2 channels, H), rows packed */
    const void *down;      /*  56: (channels, H) */
    const int64_t *row0;   /*  64: (E) first channel of each expert */
    const int32_t *cap;    /*  72: (E) resident channels; row0 + cap <= channels */
    const int32_t *widths; /* 80: (B, E) read by every call */
    const void *budget;    /*  88: one number, read by every call: the row of widths in force */
    int32_t budget_type;   /*  96: I32, I64, F32, F16 or BF16; a float is rounded to nearest */
    int32_t threads;       /* 100: CPU: the most that a call may use, 0: all available; CUDA: 0 */
    int32_t path;          /* 104: enum fm_clip_path; 0: the best */
    int32_t reserved;      /* 108: 0 */
    const void *gate_up_bias; /* 112: (2 channels), one per row of gate_up; NULL: none */
    const void *down_bias;    /* 120: (E, H); NULL: none */
    float alpha, limit;       /* 128: for FM_CLIP_SWIGLU_CLAMPED, above 0; else 0 */
};                            /* 136 bytes */

/* One call.  Zero the struct and set `size`. */
struct fm_clip_call {
    uint32_t size;            /*  0: sizeof (struct fm_clip_call) */
    int32_t ids_type;         /*  4: I32 or I64 */
    int64_t N;                /*  8: tokens, 0 .. 2^40 */
    int32_t K;                /* 16: slots per token, 1 .. 1024 */
    int32_t threads;          /* 20: CPU: the layer's or fewer; 0: the layer's.  CUDA: 0 */
    const void *hidden;       /* 24: (N, H), rows hidden_stride apart */
    int64_t hidden_stride;    /* 32: in elements, H .. 2^20 */
    const void *ids;          /* 40: (N, K) packed */
    const float *weights;     /* 48: (N, K) packed */
    const int32_t *budgets;   /* 56: (N) a row of widths for each token, or NULL: *budget for all */
    void *out;                /* 64: (N, H), overwritten; may not overlap hidden */
    int64_t out_stride;       /* 72: in elements, H .. 2^20 */
    void *workspace;          /* 80: workspace_bytes of scratch, FM_CLIP_ALIGN-aligned */
    uint64_t workspace_bytes; /* 88: at least fm_clip_workspace_bytes(layer, 1, K); with less than N
                                 tokens need, rows are computed in chunks, with identical bits */
    void *stream;             /* 96: the cudaStream_t; NULL on the CPU (on CUDA: the default one) */
    const void *budget;       /* 104: one number to read in place of the layer's, or NULL */
    int32_t budget_type;      /* 112: its type, as in the layer; 0 where budget is NULL */
    int32_t reserved;         /* 116: 0 */
};                            /* 120 bytes */

#define FM_CLIP_ALIGN 256

/*
 * Alignment.  Every array is aligned to its element.  CUDA requires more: F16 or BF16, gate_up and
 * down aligned to 16 bytes, and H a multiple of 8; other layers are refused with FM_CLIP_EDEVICE.
 * On CUDA, hidden is read and out is written faster if they are aligned to 16 bytes and their
 * strides are multiples of 8.  The CPU has no alignment requirement beyond the element.
 */

struct fm_clip; /* a prepared layer */

struct fm_clip_error {
    int32_t code;    /* as returned */
    char text[1020]; /* one sentence, NUL-terminated, no full stop */
};

/* The library's FM_CLIP_ABI; compare it with the header's before any other call. */
FM_CLIP_API uint32_t fm_clip_abi(void);

/* "0.1.0", the version of the suite. */
FM_CLIP_API const char *fm_clip_version(void);

/* Whether this library supports a device on this machine: FM_CLIP_OK, or FM_CLIP_EDEVICE with the
 * reason; FM_CLIP_EUSAGE for an unknown device and, on the CPU, if the environment variable FM_ISA
 * has a value that fm-clip(3) does not list. */
FM_CLIP_API int32_t fm_clip_available(int32_t device, struct fm_clip_error *error);

/*
 * Check a layer, copy the descriptor, row0 and cap, and create what calls need
 * (threads).  May allocate and wait for the device.  `error` may be NULL.  widths and budget are
 * not read here.  FM_CLIP_EUSAGE, FM_CLIP_EDEVICE, FM_CLIP_ENOMEM; *clip is NULL then.
 */
FM_CLIP_API int32_t fm_clip_prepare(struct fm_clip **clip, const struct fm_clip_layer *layer,
                                    struct fm_clip_error *error);
FM_CLIP_API void fm_clip_release(struct fm_clip *clip); /* NULL is fine; no call may be running */

/*
 * The scratch memory needed to compute N_max tokens of K slots in one chunk (on CUDA, in chunks of
 * at most 2^24 slots).  Only size, device, type, H, E, cap_max and threads of the layer are read,
 * so it may be called before weights are loaded; one block of the largest result serves any number
 * of layers, one after another.  0 if the arguments are invalid or N_max K is 2^31 or more.
 */
FM_CLIP_API uint64_t fm_clip_workspace_bytes(const struct fm_clip_layer *layer, int64_t N_max,
                                             int32_t K);

/* Compute one call.  Reports invalid arguments and, on CUDA, a failure to enqueue the work; a
 * failure of the work itself is reported by fm_clip_status.  `error` may be NULL. */
FM_CLIP_API int32_t fm_clip_forward(struct fm_clip *clip, const struct fm_clip_call *call,
                                    struct fm_clip_error *error);

/* The faults (bits of enum fm_clip_fault) since the last call of this function, or -1 if the device
 * itself failed (`error` has the reason).  On CUDA this waits for the device. */
FM_CLIP_API int32_t fm_clip_status(struct fm_clip *clip, struct fm_clip_error *error);

/* The code path in use: "cpu avx512 bf16 widened", "cuda mma bf16"...; valid as long as the
 * layer. */
FM_CLIP_API const char *fm_clip_name(const struct fm_clip *clip);

/*
 * The reference implementation, plain loops in double, for tests: out (N, H) packed, unrounded;
 * size (N, H), if not NULL, the same sums of absolute values, the scale for measuring errors.
 * Arguments as for fm_clip_prepare and fm_clip_forward, all in host memory, and checked in the
 * same way; N K must be below 2^31; call->out and the workspace are not used.  FM_CLIP_EUSAGE,
 * FM_CLIP_EDEVICE, FM_CLIP_ENOMEM.
 */
FM_CLIP_API int32_t fm_clip_reference(double *out, double *size, const struct fm_clip_layer *layer,
                                      const struct fm_clip_call *call, struct fm_clip_error *error);

/*
 * Tensor parallelism.  Channels are dealt to `tp` ranks in blocks of g, block j to rank j mod tp,
 * so that the shares of any prefix differ by at most g; each rank's out is a partial sum, and the
 * caller adds them up.  A rank's shard is itself a layer: its channels in order, widths and caps
 * by fm_clip_shard_width.  g and tp are above 0, 0 <= rank < tp.
 */

/* How many of the first k channels the rank has: its width for a width of k.  0 for invalid
 * arguments, such as k < 0. */
FM_CLIP_API int32_t fm_clip_shard_width(int32_t k, int32_t g, int32_t tp, int32_t rank);

/* The channel of the whole expert that is channel c of the rank.  -1 for invalid arguments, and for
 * a channel that does not fit an int32_t. */
FM_CLIP_API int32_t fm_clip_shard_channel(int32_t c, int32_t g, int32_t tp, int32_t rank);

/* Copy the rank's channels of one expert (host memory): gate_up (2 cap, H), down (cap, H), rows of
 * row_bytes, into shard_gate_up and shard_down, which have room for fm_clip_shard_width(cap, g, tp,
 * rank) channels.  Nothing is copied if that is 0. */
FM_CLIP_API void fm_clip_shard_copy(void *shard_gate_up, void *shard_down, const void *gate_up,
                                    const void *down, int32_t cap, uint64_t row_bytes, int32_t g,
                                    int32_t tp, int32_t rank);

/*
 * Budgets per token.  In a server a budget belongs to a request, not to a step: keys and values
 * that were cached under one budget are wrong under another, so a request keeps its budget until it
 * ends, and a prefix cache is keyed by budget or disabled.
 */

#ifdef __cplusplus
}
#endif
#endif
