! C = A B by an exported C library, checked on the host. A is 100000 x 8, B is 8 x 8, in f64.
!
!     tsm2-tune --device 0 --shapes 1e5x8x8 --dtype f64
!     tsm2-tune export --format library --output libtsm2.so
!     export CUDA_HOME=/usr/local/cuda # where the toolkit is
!     gfortran libtsm2.f90 examples/library.f90 -L. -L$CUDA_HOME/lib64 -ltsm2 -lcudart -o product
!     LD_LIBRARY_PATH=.:$CUDA_HOME/lib64 ./product

module cuda_runtime
    use, intrinsic :: iso_c_binding
    implicit none

    integer(c_int), parameter :: to_device = 1, to_host = 2

    interface
        integer(c_int) function cudaMalloc(address, bytes) bind(c, name="cudaMalloc")
            import :: c_int, c_ptr, c_size_t
            type(c_ptr), intent(out) :: address
            integer(c_size_t), value :: bytes
        end function

        integer(c_int) function cudaFree(address) bind(c, name="cudaFree")
            import :: c_int, c_ptr
            type(c_ptr), value :: address
        end function

        ! It waits for what was started before on the default stream.
        integer(c_int) function cudaMemcpy(to, from, bytes, direction) bind(c, name="cudaMemcpy")
            import :: c_int, c_ptr, c_size_t
            type(c_ptr), value :: to, from
            integer(c_size_t), value :: bytes
            integer(c_int), value :: direction
        end function
    end interface
end module

program product_of_two
    use cuda_runtime
    use tsm2
    implicit none

    integer(c_int64_t), parameter :: m = 100000, n = 8, k = 8
    real(c_double), target :: a(m, k), b(k, n), c(m, n)
    type(c_ptr) :: on_device_a, on_device_b, on_device_c, handle
    character(kind=c_char) :: text(512)
    integer(c_int64_t) :: i, j
    integer(c_int) :: status
    integer :: wrong

    do j = 1, k ! small whole numbers, so that all sums are exact
        do i = 1, m
            a(i, j) = real(mod(7*i + 3*j, 11_c_int64_t) - 5, c_double)
        end do
    end do
    b = a(1:k, 1:n)
    c = 0
    on_device_a = copied(c_loc(a), c_sizeof(a))
    on_device_b = copied(c_loc(b), c_sizeof(b))
    on_device_c = copied(c_loc(c), c_sizeof(c))

    handle = c_null_ptr
    call check(tsm2_create(handle)) ! for the device that the CUDA runtime is at
    call check(tsm2_choice(handle, tsm2_f64, tsm2_n, tsm2_n, m, n, k, on_device_a, m, on_device_b, k, m, &
                           text, size(text, kind=c_size_t)))
    do i = 1, size(text)
        if (text(i) == c_null_char) exit
        write (*, "(a)", advance="no") text(i)
    end do
    print *
    call check(tsm2_gemm_f64(handle, tsm2_n, tsm2_n, m, n, k, 1.0_c_double, on_device_a, m, on_device_b, k, &
                             0.0_c_double, on_device_c, m))
    call check_cuda(cudaMemcpy(c_loc(c), on_device_c, c_sizeof(c), to_host))

    wrong = count(abs(c - matmul(a, b)) > 0)
    print "(i0, a, i0, a)", wrong, " of ", size(c), " elements are wrong"
    status = tsm2_destroy(handle)
    handle = c_null_ptr
    call check(status)
    call check_cuda(cudaFree(on_device_a))
    call check_cuda(cudaFree(on_device_b))
    call check_cuda(cudaFree(on_device_c))
    if (wrong > 0) error stop 1

contains

    subroutine check(told)
        integer(c_int), intent(in) :: told
        if (told == tsm2_success) return
        print "(a)", tsm2_status_text(told)
        if (c_associated(handle)) print "(a)", tsm2_last_error(handle)
        error stop 1
    end subroutine

    subroutine check_cuda(error)
        integer(c_int), intent(in) :: error
        if (error == 0) return
        print "(a, i0)", "CUDA: error ", error
        error stop 1
    end subroutine

    ! The address of a copy in device memory.
    function copied(from, bytes) result(address)
        type(c_ptr), intent(in) :: from
        integer(c_size_t), intent(in) :: bytes
        type(c_ptr) :: address
        call check_cuda(cudaMalloc(address, bytes))
        call check_cuda(cudaMemcpy(address, from, bytes, to_device))
    end function
end program
