/* Linked with sanitized tools of many processes: libraries stay loaded, so that a report of what
 * they leaked can name them, and tests/mpi.supp can pass over those of MPI. */
int dlclose(void *handle);

int dlclose(void *handle)
{
    (void)handle;
    return 0;
}
