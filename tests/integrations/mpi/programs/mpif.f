C     mpif.h in fixed form: collectives of all kinds of Fortran's types, out of place and in place.
      program mpif
      implicit none
      include 'mpif.h'
      integer ierror, rank, ranks, i, wrong, provided
      integer*4 small(4), sums(4)
      integer*8 long
      real values(1000), totals(1000)
      double precision d(3), e(3)
      complex c(2), f(2)
      logical truth, all
      character*8 word
      double precision pair(2), best(2)
      wrong = 0
      call MPI_INIT_THREAD(MPI_THREAD_FUNNELED, provided, ierror)
      call MPI_COMM_RANK(MPI_COMM_WORLD, rank, ierror)
      call MPI_COMM_SIZE(MPI_COMM_WORLD, ranks, ierror)
      do 10 i = 1, 4
        small(i) = rank + i
 10   continue
      call MPI_ALLREDUCE(small, sums, 4, MPI_INTEGER, MPI_SUM,
     &                   MPI_COMM_WORLD, ierror)
      do 20 i = 1, 4
        if (sums(i) .ne. ranks * (ranks - 1) / 2 + ranks * i)
     &    wrong = wrong + 1
 20   continue
      call MPI_ALLREDUCE(MPI_IN_PLACE, small, 4, MPI_INTEGER4, MPI_MAX,
     &                   MPI_COMM_WORLD, ierror)
      if (small(1) .ne. ranks) wrong = wrong + 1
      do 30 i = 1, 1000
        values(i) = real(rank + i)
 30   continue
      call MPI_REDUCE(values, totals, 1000, MPI_REAL, MPI_SUM, 0,
     &                MPI_COMM_WORLD, ierror)
      if (rank .eq. 0) then
        if (totals(1000) .ne. ranks * (ranks - 1) / 2 + ranks * 1000)
     &    wrong = wrong + 1
      end if
      d(1) = 1.5d0 * (rank + 1)
      d(2) = -d(1)
      d(3) = 0.25d0
      call MPI_ALLREDUCE(d, e, 3, MPI_DOUBLE_PRECISION, MPI_MIN,
     &                   MPI_COMM_WORLD, ierror)
      if (e(1) .ne. 1.5d0 .or. e(2) .ne. -1.5d0 * ranks)
     &  wrong = wrong + 1
      c(1) = cmplx(rank, 1)
      c(2) = cmplx(0, -rank)
      call MPI_ALLREDUCE(c, f, 2, MPI_COMPLEX, MPI_SUM,
     &                   MPI_COMM_WORLD, ierror)
      if (f(1) .ne. cmplx(ranks * (ranks - 1) / 2, ranks))
     &  wrong = wrong + 1
      truth = rank .ne. 1
      call MPI_ALLREDUCE(truth, all, 1, MPI_LOGICAL, MPI_LAND,
     &                   MPI_COMM_WORLD, ierror)
      if (all) wrong = wrong + 1
      call MPI_ALLREDUCE(truth, all, 1, MPI_LOGICAL, MPI_LOR,
     &                   MPI_COMM_WORLD, ierror)
      if (.not. all) wrong = wrong + 1
      pair(1) = 10d0 - rank
      pair(2) = rank
      call MPI_ALLREDUCE(pair, best, 1, MPI_2DOUBLE_PRECISION,
     &                   MPI_MINLOC, MPI_COMM_WORLD, ierror)
      if (best(2) .ne. ranks - 1) wrong = wrong + 1
      word = 'nothing '
      if (rank .eq. ranks - 1) word = 'the last'
      call MPI_BCAST(word, 8, MPI_CHARACTER, ranks - 1, MPI_COMM_WORLD,
     &               ierror)
      if (word .ne. 'the last') wrong = wrong + 1
      long = 2_8 ** 40 + rank
      call MPI_ALLREDUCE(MPI_IN_PLACE, long, 1, MPI_INTEGER8, MPI_MAX,
     &                   MPI_COMM_WORLD, ierror)
      if (long .ne. 2_8 ** 40 + ranks - 1) wrong = wrong + 1
      call MPI_BARRIER(MPI_COMM_WORLD, ierror)
      call MPI_FINALIZE(ierror)
      if (rank .eq. 0) print '(a,i0)', 'checks: ', 13
      if (wrong .ne. 0) then
        print '(a,i0,a,i0)', 'rank ', rank, ' wrong: ', wrong
        stop 1
      end if
      end
