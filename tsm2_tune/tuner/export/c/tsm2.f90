! Fortran interface of the C library beside this file: products of tall and skinny matrices on a GPU, by the fastest
! kernels that tsm2-tune found. The C header describes each function.
!
! Matrices are in device memory, and are passed as addresses. Extents have the kind c_int64_t. alpha and beta are in host
! memory; for bf16 and f16 they have the kind c_float.

module tsm2
    use, intrinsic :: iso_c_binding
    implicit none
    private :: c_text

    enum, bind(c) ! status
        enumerator :: tsm2_success = 0
        enumerator :: tsm2_invalid_value = 1
        enumerator :: tsm2_not_supported = 2
        enumerator :: tsm2_no_driver = 3
        enumerator :: tsm2_no_context = 4
        enumerator :: tsm2_driver_error = 5
        enumerator :: tsm2_out_of_memory = 6
        enumerator :: tsm2_workspace_too_small = 7
        enumerator :: tsm2_wrong_digest = 8
    end enum

    enum, bind(c) ! operation
        enumerator :: tsm2_n = 0
        enumerator :: tsm2_t = 1
        enumerator :: tsm2_c = 2
    end enum

    enum, bind(c) ! type of elements
        enumerator :: tsm2_f32 = 0
        enumerator :: tsm2_f64 = 1
        enumerator :: tsm2_c64 = 2
        enumerator :: tsm2_c128 = 3
        enumerator :: tsm2_bf16 = 4
        enumerator :: tsm2_f16 = 5
    end enum

    interface
        integer(c_int) function tsm2_create(handle) bind(c)
            import :: c_int, c_ptr
            type(c_ptr), intent(out) :: handle
        end function

        integer(c_int) function tsm2_create_beside(other, handle) bind(c)
            import :: c_int, c_ptr
            type(c_ptr), value :: other
            type(c_ptr), intent(out) :: handle
        end function

        integer(c_int) function tsm2_interface() bind(c)
            import :: c_int
        end function

        integer(c_int) function tsm2_destroy(handle) bind(c)
            import :: c_int, c_ptr
            type(c_ptr), value :: handle
        end function

        integer(c_int) function tsm2_set_stream(handle, stream) bind(c)
            import :: c_int, c_ptr
            type(c_ptr), value :: handle, stream
        end function

        integer(c_int) function tsm2_get_stream(handle, stream) bind(c)
            import :: c_int, c_ptr
            type(c_ptr), value :: handle
            type(c_ptr), intent(out) :: stream
        end function

        integer(c_int) function tsm2_set_workspace(handle, workspace, bytes) bind(c)
            import :: c_int, c_ptr, c_size_t
            type(c_ptr), value :: handle, workspace
            integer(c_size_t), value :: bytes
        end function

        integer(c_int) function tsm2_load(handle) bind(c)
            import :: c_int, c_ptr
            type(c_ptr), value :: handle
        end function

        ! `text` has `bytes` characters. A null character ends the written text.
        integer(c_int) function tsm2_choice(handle, element_type, transa, transb, m, n, k, A, lda, B, ldb, ldc, &
                                            text, bytes) bind(c)
            import :: c_char, c_int, c_int64_t, c_ptr, c_size_t
            type(c_ptr), value :: handle, A, B
            integer(c_int), value :: element_type, transa, transb
            integer(c_int64_t), value :: m, n, k, lda, ldb, ldc
            character(kind=c_char), intent(out) :: text(*)
            integer(c_size_t), value :: bytes
        end function

        ! `is_slower` is 0 if the library is expected to be faster than cuBLAS.
        integer(c_int) function tsm2_compare(handle, element_type, transa, transb, m, n, k, A, lda, B, ldb, ldc, &
                                             us, cublas_us, is_slower) bind(c)
            import :: c_double, c_int, c_int64_t, c_ptr
            type(c_ptr), value :: handle, A, B
            integer(c_int), value :: element_type, transa, transb
            integer(c_int64_t), value :: m, n, k, lda, ldb, ldc
            real(c_double), intent(out) :: us, cublas_us
            integer(c_int), intent(out) :: is_slower
        end function

        integer(c_int) function tsm2_workspace_size(handle, element_type, transa, transb, m, n, k, A, lda, B, ldb, ldc, &
                                                    bytes) bind(c)
            import :: c_int, c_int64_t, c_ptr, c_size_t
            type(c_ptr), value :: handle, A, B
            integer(c_int), value :: element_type, transa, transb
            integer(c_int64_t), value :: m, n, k, lda, ldb, ldc
            integer(c_size_t), intent(out) :: bytes
        end function

        integer(c_int) function tsm2_gemm_f32(handle, transa, transb, m, n, k, alpha, A, lda, B, ldb, beta, C, ldc) bind(c)
            import :: c_float, c_int, c_int64_t, c_ptr
            type(c_ptr), value :: handle, A, B, C
            integer(c_int), value :: transa, transb
            integer(c_int64_t), value :: m, n, k, lda, ldb, ldc
            real(c_float), intent(in) :: alpha, beta
        end function

        integer(c_int) function tsm2_gemm_f64(handle, transa, transb, m, n, k, alpha, A, lda, B, ldb, beta, C, ldc) bind(c)
            import :: c_double, c_int, c_int64_t, c_ptr
            type(c_ptr), value :: handle, A, B, C
            integer(c_int), value :: transa, transb
            integer(c_int64_t), value :: m, n, k, lda, ldb, ldc
            real(c_double), intent(in) :: alpha, beta
        end function

        integer(c_int) function tsm2_gemm_c64(handle, transa, transb, m, n, k, alpha, A, lda, B, ldb, beta, C, ldc) bind(c)
            import :: c_float_complex, c_int, c_int64_t, c_ptr
            type(c_ptr), value :: handle, A, B, C
            integer(c_int), value :: transa, transb
            integer(c_int64_t), value :: m, n, k, lda, ldb, ldc
            complex(c_float_complex), intent(in) :: alpha, beta
        end function

        integer(c_int) function tsm2_gemm_c128(handle, transa, transb, m, n, k, alpha, A, lda, B, ldb, beta, C, ldc) bind(c)
            import :: c_double_complex, c_int, c_int64_t, c_ptr
            type(c_ptr), value :: handle, A, B, C
            integer(c_int), value :: transa, transb
            integer(c_int64_t), value :: m, n, k, lda, ldb, ldc
            complex(c_double_complex), intent(in) :: alpha, beta
        end function

        integer(c_int) function tsm2_gemm_bf16(handle, transa, transb, m, n, k, alpha, A, lda, B, ldb, beta, C, ldc) bind(c)
            import :: c_float, c_int, c_int64_t, c_ptr
            type(c_ptr), value :: handle, A, B, C
            integer(c_int), value :: transa, transb
            integer(c_int64_t), value :: m, n, k, lda, ldb, ldc
            real(c_float), intent(in) :: alpha, beta
        end function

        integer(c_int) function tsm2_gemm_f16(handle, transa, transb, m, n, k, alpha, A, lda, B, ldb, beta, C, ldc) bind(c)
            import :: c_float, c_int, c_int64_t, c_ptr
            type(c_ptr), value :: handle, A, B, C
            integer(c_int), value :: transa, transb
            integer(c_int64_t), value :: m, n, k, lda, ldb, ldc
            real(c_float), intent(in) :: alpha, beta
        end function

        integer(c_int) function tsm2_gemm_f32_strided_batched(handle, transa, transb, m, n, k, alpha, A, lda, &
                                                              stride_a, B, ldb, stride_b, beta, C, ldc, stride_c, &
                                                              batch_count) bind(c)
            import :: c_float, c_int, c_int64_t, c_ptr
            type(c_ptr), value :: handle, A, B, C
            integer(c_int), value :: transa, transb
            integer(c_int64_t), value :: m, n, k, lda, stride_a, ldb, stride_b, ldc, stride_c, batch_count
            real(c_float), intent(in) :: alpha, beta
        end function

        integer(c_int) function tsm2_gemm_f64_strided_batched(handle, transa, transb, m, n, k, alpha, A, lda, &
                                                              stride_a, B, ldb, stride_b, beta, C, ldc, stride_c, &
                                                              batch_count) bind(c)
            import :: c_double, c_int, c_int64_t, c_ptr
            type(c_ptr), value :: handle, A, B, C
            integer(c_int), value :: transa, transb
            integer(c_int64_t), value :: m, n, k, lda, stride_a, ldb, stride_b, ldc, stride_c, batch_count
            real(c_double), intent(in) :: alpha, beta
        end function

        integer(c_int) function tsm2_gemm_c64_strided_batched(handle, transa, transb, m, n, k, alpha, A, lda, &
                                                              stride_a, B, ldb, stride_b, beta, C, ldc, stride_c, &
                                                              batch_count) bind(c)
            import :: c_float_complex, c_int, c_int64_t, c_ptr
            type(c_ptr), value :: handle, A, B, C
            integer(c_int), value :: transa, transb
            integer(c_int64_t), value :: m, n, k, lda, stride_a, ldb, stride_b, ldc, stride_c, batch_count
            complex(c_float_complex), intent(in) :: alpha, beta
        end function

        integer(c_int) function tsm2_gemm_c128_strided_batched(handle, transa, transb, m, n, k, alpha, A, lda, &
                                                               stride_a, B, ldb, stride_b, beta, C, ldc, stride_c, &
                                                               batch_count) bind(c)
            import :: c_double_complex, c_int, c_int64_t, c_ptr
            type(c_ptr), value :: handle, A, B, C
            integer(c_int), value :: transa, transb
            integer(c_int64_t), value :: m, n, k, lda, stride_a, ldb, stride_b, ldc, stride_c, batch_count
            complex(c_double_complex), intent(in) :: alpha, beta
        end function

        integer(c_int) function tsm2_gemm_bf16_strided_batched(handle, transa, transb, m, n, k, alpha, A, lda, &
                                                               stride_a, B, ldb, stride_b, beta, C, ldc, stride_c, &
                                                               batch_count) bind(c)
            import :: c_float, c_int, c_int64_t, c_ptr
            type(c_ptr), value :: handle, A, B, C
            integer(c_int), value :: transa, transb
            integer(c_int64_t), value :: m, n, k, lda, stride_a, ldb, stride_b, ldc, stride_c, batch_count
            real(c_float), intent(in) :: alpha, beta
        end function

        integer(c_int) function tsm2_gemm_f16_strided_batched(handle, transa, transb, m, n, k, alpha, A, lda, &
                                                              stride_a, B, ldb, stride_b, beta, C, ldc, stride_c, &
                                                              batch_count) bind(c)
            import :: c_float, c_int, c_int64_t, c_ptr
            type(c_ptr), value :: handle, A, B, C
            integer(c_int), value :: transa, transb
            integer(c_int64_t), value :: m, n, k, lda, stride_a, ldb, stride_b, ldc, stride_c, batch_count
            real(c_float), intent(in) :: alpha, beta
        end function

        ! A, B and C are arrays of the addresses of matrices; the arrays are in host memory.
        integer(c_int) function tsm2_gemm_f32_batched(handle, transa, transb, m, n, k, alpha, A, lda, B, ldb, beta, &
                                                      C, ldc, batch_count) bind(c)
            import :: c_float, c_int, c_int64_t, c_ptr
            type(c_ptr), value :: handle
            integer(c_int), value :: transa, transb
            integer(c_int64_t), value :: m, n, k, lda, ldb, ldc, batch_count
            real(c_float), intent(in) :: alpha, beta
            type(c_ptr), intent(in) :: A(*), B(*), C(*)
        end function

        integer(c_int) function tsm2_gemm_f64_batched(handle, transa, transb, m, n, k, alpha, A, lda, B, ldb, beta, &
                                                      C, ldc, batch_count) bind(c)
            import :: c_double, c_int, c_int64_t, c_ptr
            type(c_ptr), value :: handle
            integer(c_int), value :: transa, transb
            integer(c_int64_t), value :: m, n, k, lda, ldb, ldc, batch_count
            real(c_double), intent(in) :: alpha, beta
            type(c_ptr), intent(in) :: A(*), B(*), C(*)
        end function

        integer(c_int) function tsm2_gemm_c64_batched(handle, transa, transb, m, n, k, alpha, A, lda, B, ldb, beta, &
                                                      C, ldc, batch_count) bind(c)
            import :: c_float_complex, c_int, c_int64_t, c_ptr
            type(c_ptr), value :: handle
            integer(c_int), value :: transa, transb
            integer(c_int64_t), value :: m, n, k, lda, ldb, ldc, batch_count
            complex(c_float_complex), intent(in) :: alpha, beta
            type(c_ptr), intent(in) :: A(*), B(*), C(*)
        end function

        integer(c_int) function tsm2_gemm_c128_batched(handle, transa, transb, m, n, k, alpha, A, lda, B, ldb, beta, &
                                                       C, ldc, batch_count) bind(c)
            import :: c_double_complex, c_int, c_int64_t, c_ptr
            type(c_ptr), value :: handle
            integer(c_int), value :: transa, transb
            integer(c_int64_t), value :: m, n, k, lda, ldb, ldc, batch_count
            complex(c_double_complex), intent(in) :: alpha, beta
            type(c_ptr), intent(in) :: A(*), B(*), C(*)
        end function

        integer(c_int) function tsm2_gemm_bf16_batched(handle, transa, transb, m, n, k, alpha, A, lda, B, ldb, beta, &
                                                       C, ldc, batch_count) bind(c)
            import :: c_float, c_int, c_int64_t, c_ptr
            type(c_ptr), value :: handle
            integer(c_int), value :: transa, transb
            integer(c_int64_t), value :: m, n, k, lda, ldb, ldc, batch_count
            real(c_float), intent(in) :: alpha, beta
            type(c_ptr), intent(in) :: A(*), B(*), C(*)
        end function

        integer(c_int) function tsm2_gemm_f16_batched(handle, transa, transb, m, n, k, alpha, A, lda, B, ldb, beta, &
                                                      C, ldc, batch_count) bind(c)
            import :: c_float, c_int, c_int64_t, c_ptr
            type(c_ptr), value :: handle
            integer(c_int), value :: transa, transb
            integer(c_int64_t), value :: m, n, k, lda, ldb, ldc, batch_count
            real(c_float), intent(in) :: alpha, beta
            type(c_ptr), intent(in) :: A(*), B(*), C(*)
        end function

        integer(c_int) function tsm2_choice_strided_batched(handle, element_type, transa, transb, m, n, k, A, lda, &
                                                            stride_a, B, ldb, stride_b, ldc, stride_c, batch_count, &
                                                            text, bytes) bind(c)
            import :: c_char, c_int, c_int64_t, c_ptr, c_size_t
            type(c_ptr), value :: handle, A, B
            integer(c_int), value :: element_type, transa, transb
            integer(c_int64_t), value :: m, n, k, lda, stride_a, ldb, stride_b, ldc, stride_c, batch_count
            character(kind=c_char), intent(out) :: text(*)
            integer(c_size_t), value :: bytes
        end function

        integer(c_int) function tsm2_compare_strided_batched(handle, element_type, transa, transb, m, n, k, A, lda, &
                                                             stride_a, B, ldb, stride_b, ldc, stride_c, batch_count, &
                                                             us, cublas_us, is_slower) bind(c)
            import :: c_double, c_int, c_int64_t, c_ptr
            type(c_ptr), value :: handle, A, B
            integer(c_int), value :: element_type, transa, transb
            integer(c_int64_t), value :: m, n, k, lda, stride_a, ldb, stride_b, ldc, stride_c, batch_count
            real(c_double), intent(out) :: us, cublas_us
            integer(c_int), intent(out) :: is_slower
        end function

        integer(c_int) function tsm2_workspace_size_strided_batched(handle, element_type, transa, transb, m, n, k, &
                                                                    A, lda, stride_a, B, ldb, stride_b, ldc, &
                                                                    stride_c, batch_count, bytes) bind(c)
            import :: c_int, c_int64_t, c_ptr, c_size_t
            type(c_ptr), value :: handle, A, B
            integer(c_int), value :: element_type, transa, transb
            integer(c_int64_t), value :: m, n, k, lda, stride_a, ldb, stride_b, ldc, stride_c, batch_count
            integer(c_size_t), intent(out) :: bytes
        end function
    end interface

contains

    ! Return the meaning of a status.
    function tsm2_status_text(status) result(text)
        integer(c_int), intent(in) :: status
        character(len=:), allocatable :: text
        interface
            type(c_ptr) function status_text(status) bind(c, name="tsm2_status_text")
                import :: c_int, c_ptr
                integer(c_int), value :: status
            end function
        end interface
        text = c_text(status_text(status))
    end function

    ! Return the error of the last call with this handle, or an empty text. For c_null_ptr, return why this thread's last
    ! call of tsm2_create or tsm2_create_beside failed.
    function tsm2_last_error(handle) result(text)
        type(c_ptr), intent(in) :: handle
        character(len=:), allocatable :: text
        interface
            type(c_ptr) function last_error(handle) bind(c, name="tsm2_last_error")
                import :: c_ptr
                type(c_ptr), value :: handle
            end function
        end interface
        text = c_text(last_error(handle))
    end function

    ! Return where the kernels were tuned: program version, devices, drivers, toolkits and days, in lines.
    function tsm2_about() result(text)
        character(len=:), allocatable :: text
        interface
            type(c_ptr) function about() bind(c, name="tsm2_about")
                import :: c_ptr
            end function
        end interface
        text = c_text(about())
    end function

    function c_text(address) result(text)
        type(c_ptr), intent(in) :: address
        character(len=:), allocatable :: text
        character(kind=c_char), pointer :: letters(:)
        integer :: i
        interface
            integer(c_size_t) function c_length(text) bind(c, name="strlen")
                import :: c_ptr, c_size_t
                type(c_ptr), value :: text
            end function
        end interface
        call c_f_pointer(address, letters, [c_length(address)])
        allocate (character(len=size(letters)) :: text)
        do i = 1, size(letters)
            text(i:i) = letters(i)
        end do
    end function

end module
