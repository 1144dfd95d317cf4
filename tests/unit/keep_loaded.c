/* Linked with sanitized tools of MPI runs: libraries stay loaded, so that a report of leaks can
 * name them, and tests/mpi.supp can suppress those of MPI. */
int dlclose(void *handle);

int dlclose(void *handle)
{
    (void)handle;
    return 0;
}
