/*
 * Fake streams, events, captures and graphs.  Work is deferred until the host waits for it, so that
 * memory that is freed or overwritten too early is detected.
 */
#include "tests/gpu/double.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <deque>
#include <set>
#include <vector>

struct piece {
    const char *what;
    double_work work;
};

struct CUgraph_st {
    std::vector<piece> pieces;
};
struct CUgraphExec_st {
    std::vector<piece> pieces;
};
struct CUstream_st {
    std::deque<piece> queue;
    CUgraph_st *into; /* the graph that is being captured, or NULL */
    bool broken;
    bool apart; /* non-blocking: it and the default stream do not wait for each other */
};
struct CUevent_st {
    bool recorded;
    double at;
    size_t dirty;
};

static CUstream_st the_default;
static std::set<CUstream_st *> streams;
static std::set<CUevent_st *> events;
static std::set<CUgraph_st *> graphs;
static std::set<CUgraphExec_st *> execs;

/* --- the model of time: bytes over a bandwidth, and the dirty bytes of a cache of 50 MB */

static const size_t cache = (size_t)50 << 20;
static const double bandwidth = 3e12;
static double now;
static size_t dirty, dirty_at_clock;

void double_wrote(size_t bytes)
{
    now += (double)bytes / bandwidth;
    dirty = std::min(cache, dirty + bytes);
}

void double_read(size_t bytes)
{
    now +=
        (double)(bytes + std::min(dirty, bytes)) / bandwidth; /* evicted dirty bytes are written */
    dirty -= std::min(dirty, bytes);
}

size_t double_dirty_at_clock(void)
{
    return dirty_at_clock;
}

/* --- streams */

int double_live_handles(void)
{
    return (int)(streams.size() + events.size() + graphs.size() + execs.size());
}

static CUstream_st *known(cudaStream_t stream)
{
    if (!stream || stream == cudaStreamLegacy)
        return &the_default;
    if (!streams.count(stream))
        double_die("%p is not a stream, or was destroyed", (void *)stream);
    return stream;
}

static void drain_one(CUstream_st *s)
{
    bool any = !s->queue.empty();
    while (!s->queue.empty()) {
        piece next = s->queue.front();
        s->queue.pop_front();
        double_open_memory(next.what);
        next.work();
        now += 1e-6;
    }
    if (any)
        double_close_memory();
}

void double_drain(void *stream)
{
    CUstream_st *only = stream ? known((cudaStream_t)stream) : nullptr;
    bool blocking = only == &the_default;
    if (!only || !only->apart)
        drain_one(&the_default);
    for (CUstream_st *s : streams)
        if (!only || s == only || (blocking && !s->apart))
            drain_one(s);
}

int double_unsafe(void)
{
    int code = cudaSuccess;
    for (CUstream_st *s : streams)
        if (s->into) {
            s->broken = true;
            code = cudaErrorStreamCaptureUnsupported;
        }
    return code;
}

/* The default stream and the blocking streams wait for each other's earlier work. */
int double_enqueue(void *stream, const char *what, double_work work)
{
    CUstream_st *s = known((cudaStream_t)stream);
    if (s->into) {
        if (s->broken)
            return cudaErrorStreamCaptureInvalidated;
        s->into->pieces.push_back({what, work});
        return cudaSuccess;
    }
    if (s == &the_default) {
        if (double_unsafe())
            return cudaErrorStreamCaptureImplicit;
        for (CUstream_st *other : streams)
            if (!other->apart)
                drain_one(other);
    } else if (!s->apart) {
        drain_one(&the_default);
    }
    s->queue.push_back({what, work});
    return cudaSuccess;
}

extern "C" cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    if (double_fails("cudaStreamCreate"))
        return (cudaError_t)double_error(cudaErrorUnknown);
    *stream = new CUstream_st();
    (*stream)->apart = flags & cudaStreamNonBlocking;
    streams.insert(*stream);
    return cudaSuccess;
}

extern "C" cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}

extern "C" cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    CUstream_st *s = known(stream);
    if (s == &the_default)
        return (cudaError_t)double_error(cudaErrorInvalidResourceHandle);
    drain_one(s);
    if (s->into)
        double_die("a stream is destroyed while it captures");
    streams.erase(s);
    delete s;
    return cudaSuccess;
}

extern "C" cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    CUstream_st *s = known(stream);
    if (double_fails("cudaStreamSynchronize"))
        return (cudaError_t)double_error(cudaErrorUnknown);
    if (s->into || (s == &the_default && double_unsafe())) {
        double_unsafe();
        return (cudaError_t)double_error(cudaErrorStreamCaptureUnsupported);
    }
    double_drain(s == &the_default ? cudaStreamLegacy : s);
    return cudaSuccess;
}

extern "C" cudaError_t cudaDeviceSynchronize(void)
{
    if (double_fails("cudaDeviceSynchronize"))
        return (cudaError_t)double_error(cudaErrorUnknown);
    if (int code = double_unsafe())
        return (cudaError_t)double_error(code);
    double_drain(nullptr);
    return cudaSuccess;
}

/* --- events */

extern "C" cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    if (double_fails("cudaEventCreate"))
        return (cudaError_t)double_error(cudaErrorUnknown);
    *event = new CUevent_st();
    events.insert(*event);
    return cudaSuccess;
}

static CUevent_st *known(cudaEvent_t event)
{
    if (!events.count(event))
        double_die("%p is not an event, or was destroyed", (void *)event);
    return event;
}

extern "C" cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    double_drain(nullptr); /* pending work may still record it */
    events.erase(known(event));
    delete event;
    return cudaSuccess;
}

extern "C" cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    CUevent_st *e = known(event);
    if (double_fails("cudaEventRecord"))
        return (cudaError_t)double_error(cudaErrorUnknown);
    e->recorded = false;
    return (cudaError_t)double_error(double_enqueue(stream, "an event", [=]() {
        e->recorded = true;
        e->at = now;
        e->dirty = dirty;
    }));
}

extern "C" cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    known(event);
    if (double_fails("cudaEventSynchronize"))
        return (cudaError_t)double_error(cudaErrorUnknown);
    if (int code = double_unsafe())
        return (cudaError_t)double_error(code);
    double_drain(nullptr);
    return cudaSuccess;
}

extern "C" cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end)
{
    CUevent_st *a = known(begin), *b = known(end);
    if (double_fails("cudaEventElapsedTime"))
        return (cudaError_t)double_error(cudaErrorUnknown);
    if (!a->recorded || !b->recorded)
        return (cudaError_t)double_error(cudaErrorNotReady);
    *ms = (float)(1e3 * (b->at - a->at));
    dirty_at_clock = std::max(dirty_at_clock, a->dirty);
    return cudaSuccess;
}

/* --- captures and graphs */

extern "C" cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode)
{
    CUstream_st *s = known(stream);
    if (double_fails("cudaStreamBeginCapture"))
        return (cudaError_t)double_error(cudaErrorUnknown);
    if (s == &the_default)
        return (cudaError_t)double_error(cudaErrorStreamCaptureUnsupported);
    if (s->into)
        return (cudaError_t)double_error(cudaErrorIllegalState);
    s->into = new CUgraph_st();
    s->broken = false;
    return cudaSuccess;
}

extern "C" cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    CUstream_st *s = known(stream);
    *graph = nullptr;
    if (!s->into)
        return (cudaError_t)double_error(cudaErrorIllegalState);
    CUgraph_st *made = s->into;
    bool broken = s->broken || double_fails("cudaStreamEndCapture");
    s->into = nullptr;
    if (broken) {
        delete made;
        return (cudaError_t)double_error(cudaErrorStreamCaptureInvalidated);
    }
    graphs.insert(made);
    *graph = made;
    return cudaSuccess;
}

extern "C" cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *status)
{
    CUstream_st *s = known(stream);
    *status = !s->into    ? cudaStreamCaptureStatusNone
              : s->broken ? cudaStreamCaptureStatusInvalidated
                          : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}

extern "C" cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph,
                                            unsigned long long)
{
    if (!graphs.count(graph))
        double_die("instantiating something that is not a graph, or was destroyed");
    if (double_fails("cudaGraphInstantiate"))
        return (cudaError_t)double_error(cudaErrorMemoryAllocation);
    *exec = new CUgraphExec_st{graph->pieces};
    execs.insert(*exec);
    return cudaSuccess;
}

extern "C" cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    if (!graphs.erase(graph))
        double_die("destroying something that is not a graph, or was destroyed");
    delete graph;
    return cudaSuccess;
}

extern "C" cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    if (!execs.erase(exec))
        double_die("destroying something that is not an executable graph, or was destroyed");
    delete exec;
    return cudaSuccess;
}

extern "C" cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream)
{
    known(stream);
    return (cudaError_t)double_error(execs.count(exec) ? cudaSuccess : cudaErrorInvalidValue);
}

extern "C" cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    if (!execs.count(exec))
        double_die("launching something that is not an executable graph, or was destroyed");
    if (double_fails("cudaGraphLaunch"))
        return (cudaError_t)double_error(cudaErrorUnknown);
    int code = cudaSuccess;
    for (const piece &p : exec->pieces)
        if (code == cudaSuccess)
            code = double_enqueue(stream, p.what, p.work);
    return (cudaError_t)double_error(code);
}
