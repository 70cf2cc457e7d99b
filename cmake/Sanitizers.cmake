# Applies FASTDECODE_SANITIZE to every target, and to the tests' surroundings.
set(FASTDECODE_TEST_ENVIRONMENT "")
if(FASTDECODE_SANITIZE)
  list(JOIN FASTDECODE_SANITIZE "," sanitizers)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${sanitizers}>
    $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize-recover=all> -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${sanitizers})
  # A daemon of a test that finds an error must end with it, not go on. glog and glibc are
  # not built with TSan, which does not see the lock that their tzset takes.
  set(FASTDECODE_TEST_ENVIRONMENT "ASAN_OPTIONS=halt_on_error=1:detect_stack_use_after_return=1:allocator_may_return_null=1"
    "UBSAN_OPTIONS=print_stacktrace=1"
    "TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:ignore_noninstrumented_modules=1")
endif()
