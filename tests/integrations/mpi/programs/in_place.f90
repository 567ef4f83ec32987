! `use mpi`: MPI_IN_PLACE wherever it is allowed, and MPI_BOTTOM.
program in_place
  use mpi
  implicit none
  integer :: ierror, rank, ranks, i, wrong = 0, length, there
  integer, parameter :: lengths(3) = [1, 50, 20000]
  integer(MPI_ADDRESS_KIND) :: address(1)
  integer, allocatable :: a(:), counts(:), places(:)
  double precision, allocatable :: d(:)
  call MPI_Init(ierror)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, ierror)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks, ierror)
  do i = 1, 3
    call tried(lengths(i))
  end do
  call MPI_Finalize(ierror)
  if (rank == 0) print '(a,i0)', 'checks: ', 3 * 10
  if (wrong /= 0) then
    print '(a,i0,a,i0)', 'rank ', rank, ' wrong: ', wrong
    stop 1
  end if

contains

  subroutine check(right)
    logical, intent(in) :: right
    if (.not. right) wrong = wrong + 1
  end subroutine

  subroutine tried(n)
    integer, intent(in) :: n
    integer :: k, sum
    sum = ranks * (ranks - 1) / 2
    allocate (a(n * ranks), d(n), counts(ranks), places(ranks))
    counts = n
    places = [(k * n, k = 0, ranks - 1)]
    d = rank + 0.5d0
    call MPI_Allreduce(MPI_IN_PLACE, d, n, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, ierror)
    call check(all(d == sum + 0.5d0 * ranks))
    d = rank + 0.5d0
    if (rank == 0) then
      call MPI_Reduce(MPI_IN_PLACE, d, n, MPI_DOUBLE_PRECISION, MPI_MAX, 0, MPI_COMM_WORLD, ierror)
    else
      call MPI_Reduce(d, d, n, MPI_DOUBLE_PRECISION, MPI_MAX, 0, MPI_COMM_WORLD, ierror)
    end if
    call check(rank /= 0 .or. all(d == ranks - 0.5d0))
    a = -1
    a(rank * n + 1:(rank + 1) * n) = rank
    call MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, a, n, MPI_INTEGER, MPI_COMM_WORLD, ierror)
    call check(all(a == [((k / n), k = 0, n * ranks - 1)]))
    a = -1
    a(rank * n + 1:(rank + 1) * n) = rank
    call MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, a, counts, places, MPI_INTEGER, MPI_COMM_WORLD, ierror)
    call check(all(a == [((k / n), k = 0, n * ranks - 1)]))
    a = [(rank * 100 + k / n, k = 0, n * ranks - 1)]
    call MPI_Alltoall(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, a, n, MPI_INTEGER, MPI_COMM_WORLD, ierror)
    call check(all(a == [(k / n * 100 + rank, k = 0, n * ranks - 1)]))
    a = [(rank * 100 + k / n, k = 0, n * ranks - 1)]
    call MPI_Alltoallv(MPI_IN_PLACE, counts, places, MPI_DATATYPE_NULL, a, counts, places, MPI_INTEGER, &
                       MPI_COMM_WORLD, ierror)
    call check(all(a == [(k / n * 100 + rank, k = 0, n * ranks - 1)]))
    a = [(rank + k / n, k = 0, n * ranks - 1)]
    call MPI_Reduce_scatter_block(MPI_IN_PLACE, a, n, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, ierror)
    call check(all(a(1:n) == sum + ranks * rank))
    a = rank
    if (rank == 0) then
      call MPI_Gather(MPI_IN_PLACE, n, MPI_INTEGER, a, n, MPI_INTEGER, 0, MPI_COMM_WORLD, ierror)
      call check(all(a == [((k / n), k = 0, n * ranks - 1)]))
      call MPI_Scatter(a, n, MPI_INTEGER, MPI_IN_PLACE, n, MPI_INTEGER, 0, MPI_COMM_WORLD, ierror)
    else
      call MPI_Gather(a, n, MPI_INTEGER, a, n, MPI_INTEGER, 0, MPI_COMM_WORLD, ierror)
      a = -1
      call MPI_Scatter(a, n, MPI_INTEGER, a, n, MPI_INTEGER, 0, MPI_COMM_WORLD, ierror)
      call check(all(a(1:n) == rank))
    end if
    a = rank
    call MPI_Get_address(a, address(1), ierror)
    call MPI_Type_create_hindexed(1, [n], address, MPI_INTEGER, there, ierror)
    call MPI_Type_commit(there, ierror)
    call MPI_Bcast(MPI_BOTTOM, 1, there, ranks - 1, MPI_COMM_WORLD, ierror)
    call check(all(a(1:n) == ranks - 1))
    call MPI_Type_free(there, ierror)
    call MPI_Allreduce(MPI_IN_PLACE, a, n, MPI_INTEGER, MPI_BOR, MPI_COMM_WORLD, ierror)
    call check(all(a(1:n) == ranks - 1))
    deallocate (a, d, counts, places)
  end subroutine
end program
