! `use mpi`: what is moved, on communicators that are split, reversed and duplicated, with errors returned.
program module
  use mpi
  implicit none
  integer :: ierror, rank, ranks, i, k, wrong = 0, comms(4), errorclass
  integer, allocatable :: given(:), found(:), counts(:), places(:)
  call MPI_Init(ierror)
  comms(1) = MPI_COMM_WORLD
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, ierror)
  call MPI_Comm_dup(MPI_COMM_WORLD, comms(2), ierror)
  call MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, comms(3), ierror)
  call MPI_Comm_split(MPI_COMM_WORLD, mod(rank, 2), 0, comms(4), ierror)
  do k = 1, 4
    call MPI_Comm_rank(comms(k), rank, ierror)
    call MPI_Comm_size(comms(k), ranks, ierror)
    call moved(comms(k), 1)
    call moved(comms(k), 10000)
  end do
  call MPI_Comm_set_errhandler(comms(2), MPI_ERRORS_RETURN, ierror)
  call MPI_Bcast(i, -1, MPI_INTEGER, 0, comms(2), ierror)
  call MPI_Error_class(ierror, errorclass, i)
  call check(errorclass == MPI_ERR_COUNT)
  do k = 2, 4
    call MPI_Comm_free(comms(k), ierror)
  end do
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, ierror)
  call MPI_Finalize(ierror)
  if (rank == 0) print '(a,i0)', 'checks: ', 4 * 2 * 8 + 1
  if (wrong /= 0) then
    print '(a,i0,a,i0)', 'rank ', rank, ' wrong: ', wrong
    stop 1
  end if

contains

  subroutine check(right)
    logical, intent(in) :: right
    if (.not. right) wrong = wrong + 1
  end subroutine

  subroutine moved(comm, n)
    integer, intent(in) :: comm, n
    integer :: r
    allocate (given(n * ranks), found(n * ranks), counts(ranks), places(ranks))
    given = [(rank * 100 + i / n, i = 0, n * ranks - 1)]
    counts = n
    places = [(r * n, r = ranks - 1, 0, -1)]
    found = -1
    call MPI_Allgather(given, n, MPI_INTEGER, found, n, MPI_INTEGER, comm, ierror)
    call check(all(found == [(i / n * 100, i = 0, n * ranks - 1)]))
    call MPI_Allgatherv(given, n, MPI_INTEGER, found, counts, places, MPI_INTEGER, comm, ierror)
    call check(all(found == [((ranks - 1 - i / n) * 100, i = 0, n * ranks - 1)]))
    call MPI_Alltoall(given, n, MPI_INTEGER, found, n, MPI_INTEGER, comm, ierror)
    call check(all(found == [(i / n * 100 + rank, i = 0, n * ranks - 1)]))
    call MPI_Alltoallv(given, counts, places, MPI_INTEGER, found, counts, places, MPI_INTEGER, comm, ierror)
    call check(all(found == [((ranks - 1 - i / n) * 100 + ranks - 1 - rank, i = 0, n * ranks - 1)]))
    found = -1
    call MPI_Gather(given, n, MPI_INTEGER, found, n, MPI_INTEGER, ranks - 1, comm, ierror)
    call check(rank /= ranks - 1 .or. all(found == [(i / n * 100, i = 0, n * ranks - 1)]))
    call MPI_Scatter(given, n, MPI_INTEGER, found, n, MPI_INTEGER, 0, comm, ierror)
    call check(all(found(1:n) == rank))
    call MPI_Reduce_scatter_block(given, found, n, MPI_INTEGER, MPI_SUM, comm, ierror)
    call check(all(found(1:n) == 100 * ranks * (ranks - 1) / 2 + rank * ranks))
    call MPI_Reduce_scatter(given, found, counts, MPI_INTEGER, MPI_MAX, comm, ierror)
    call check(all(found(1:n) == 100 * (ranks - 1) + rank))
    deallocate (given, found, counts, places)
  end subroutine
end program
