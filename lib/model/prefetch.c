/*
 * While a layer is computed, a separate thread asks the kernel to read ahead the bytes of the next
 * one.  Reading from disk then overlaps with computation, and the process needs no extra memory.
 */
#include "lib/base/signals.h"
#include "lib/model/loading.h"

static void *look_ahead(void *arg)
{
    struct fm_model *m = arg;
    const struct fm_layer_tensors *layer = &m->layer[m->ahead.l];
    for (size_t i = 0; i < layer->places; i++) {
        const struct fm_stored *at = &layer->place[i].at;
        fm_file_expect(at->file, at->tensor->offset, at->tensor->size, &m->ahead.enough);
        if (at->scale)
            fm_file_expect(at->scale_file, at->scale->offset, at->scale->size, &m->ahead.enough);
    }
    return NULL;
}

void fm_prefetch_begin(struct fm_model *m, int l)
{
    m->ahead.l = l;
    atomic_store(&m->ahead.enough, false);
    m->ahead.running = fm_signals_thread(&m->ahead.thread, look_ahead, m) == 0;
}

void fm_prefetch_end(struct fm_model *m)
{
    atomic_store(&m->ahead.enough, true);
    if (m->ahead.running)
        pthread_join(m->ahead.thread, NULL);
    m->ahead.running = false;
}
