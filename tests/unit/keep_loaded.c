/* Linked with sanitized tools of MPI runs to keep libraries loaded, so that leak reports name them,
 * and tests/mpi.supp can suppress those of MPI. */
int dlclose(void *handle);

int dlclose(void *handle)
{
    (void)handle;
    return 0;
}
