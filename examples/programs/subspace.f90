! The eight largest eigenvalues of a symmetric matrix, by subspace iteration with cuBLAS, in f64.
!
!     gfortran subspace.f90 -L$CUDA_HOME/lib64 -lcublas -lcudart -o subspace_f90
!     ./subspace_f90

module cublas
    use, intrinsic :: iso_c_binding
    implicit none

    integer(c_int), parameter :: none = 0, transposed = 1, upper = 1, right = 1, plain_diagonal = 0
    integer(c_int), parameter :: to_device = 1, to_host = 2

    interface
        integer(c_int) function cudaMalloc(address, bytes) bind(c, name="cudaMalloc")
            import :: c_int, c_ptr, c_size_t
            type(c_ptr), intent(out) :: address
            integer(c_size_t), value :: bytes
        end function

        integer(c_int) function cudaMemcpy(to, from, bytes, direction) bind(c, name="cudaMemcpy")
            import :: c_int, c_ptr, c_size_t
            type(c_ptr), value :: to, from
            integer(c_size_t), value :: bytes
            integer(c_int), value :: direction
        end function

        integer(c_int) function cudaDeviceSynchronize() bind(c, name="cudaDeviceSynchronize")
            import :: c_int
        end function

        integer(c_int) function cublasCreate(handle) bind(c, name="cublasCreate_v2")
            import :: c_int, c_ptr
            type(c_ptr), intent(out) :: handle
        end function

        integer(c_int) function cublasDgemm(handle, transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc) &
                bind(c, name="cublasDgemm_v2")
            import :: c_int, c_ptr, c_double
            type(c_ptr), value :: handle, a, b, c
            integer(c_int), value :: transa, transb, m, n, k, lda, ldb, ldc
            real(c_double), intent(in) :: alpha, beta
        end function

        integer(c_int) function cublasDsyrk(handle, uplo, trans, n, k, alpha, a, lda, beta, c, ldc) &
                bind(c, name="cublasDsyrk_v2")
            import :: c_int, c_ptr, c_double
            type(c_ptr), value :: handle, a, c
            integer(c_int), value :: uplo, trans, n, k, lda, ldc
            real(c_double), intent(in) :: alpha, beta
        end function

        integer(c_int) function cublasDtrsm(handle, side, uplo, trans, diag, m, n, alpha, a, lda, b, ldb) &
                bind(c, name="cublasDtrsm_v2")
            import :: c_int, c_ptr, c_double
            type(c_ptr), value :: handle, a, b
            integer(c_int), value :: side, uplo, trans, diag, m, n, lda, ldb
            real(c_double), intent(in) :: alpha
        end function
    end interface
end module

program subspace
    use cublas
    implicit none
    integer(c_int), parameter :: rows = 8192, vectors = 8, iterations = 50, warm_up = 5
    integer(c_size_t), parameter :: bytes = c_sizeof(1.0_c_double)
    real(c_double), parameter :: one = 1, zero = 0
    real(c_double), allocatable, target :: matrix(:, :), start(:, :)
    real(c_double), target :: small(vectors, vectors)
    type(c_ptr) :: handle, a, q, y, r, next
    integer(8) :: begin, finish, rate
    integer :: turn, i, j

    allocate (matrix(rows, rows), start(rows, vectors))
    do j = 1, rows
        do i = 1, j
            matrix(i, j) = number(i, j)
            matrix(j, i) = matrix(i, j)
        end do
    end do
    do j = 1, vectors
        do i = 1, rows
            start(i, j) = number(i, rows + j)
        end do
    end do
    small = 0
    call check(cudaMalloc(a, bytes * size(matrix, kind=c_size_t)), "cudaMalloc")
    call check(cudaMalloc(q, bytes * size(start, kind=c_size_t)), "cudaMalloc")
    call check(cudaMalloc(y, bytes * size(start, kind=c_size_t)), "cudaMalloc")
    call check(cudaMalloc(r, bytes * size(small, kind=c_size_t)), "cudaMalloc")
    call check(cudaMemcpy(a, c_loc(matrix), bytes * size(matrix, kind=c_size_t), to_device), "cudaMemcpy")
    call check(cudaMemcpy(q, c_loc(start), bytes * size(start, kind=c_size_t), to_device), "cudaMemcpy")
    call check(cublasCreate(handle), "cublasCreate")
    call system_clock(begin, rate)
    do turn = 1 - warm_up, iterations
        if (turn == 1) call system_clock(begin)
        call check(cublasDgemm(handle, none, none, rows, vectors, rows, one, a, rows, q, rows, zero, y, rows), "cublasDgemm")
        call check(cublasDsyrk(handle, upper, transposed, vectors, rows, one, y, rows, zero, r, vectors), "cublasDsyrk")
        call check(cudaMemcpy(c_loc(small), r, bytes * size(small, kind=c_size_t), to_host), "cudaMemcpy")
        call cholesky(small)
        call check(cudaMemcpy(r, c_loc(small), bytes * size(small, kind=c_size_t), to_device), "cudaMemcpy")
        call check(cublasDtrsm(handle, right, upper, none, plain_diagonal, rows, vectors, one, r, vectors, y, rows), &
                   "cublasDtrsm")
        next = y
        y = q
        q = next
    end do
    call check(cudaDeviceSynchronize(), "cudaDeviceSynchronize")
    call system_clock(finish)
    print "(f8.3, a, es11.5)", 1.0d3 * (finish - begin) / rate / iterations, " ms an iteration, result ", small(1, 1)

contains

    subroutine check(status, what)
        integer(c_int), intent(in) :: status
        character(*), intent(in) :: what
        if (status /= 0) then
            print "(a, a, i0)", what, " failed with status ", status
            stop 1
        end if
    end subroutine

    ! A number between -1 and 1 that belongs to the place.
    real(c_double) function number(row, column)
        integer, intent(in) :: row, column
        number = mod(sin(12.9898d0 * row + 78.233d0 * column) * 43758.5453d0, 1.0d0)
    end function

    ! R of S = R^T R, in place, by its upper triangle.
    subroutine cholesky(s)
        real(c_double), intent(inout) :: s(:, :)
        integer :: row, column
        do column = 1, vectors
            do row = 1, column - 1
                s(row, column) = (s(row, column) - dot_product(s(:row - 1, row), s(:row - 1, column))) / s(row, row)
            end do
            s(column, column) = sqrt(s(column, column) - sum(s(:column - 1, column)**2))
        end do
    end subroutine
end program
