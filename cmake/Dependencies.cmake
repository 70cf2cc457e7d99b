# Debian's packages, and libtorch for the S-worker.
find_package(Threads REQUIRED)
find_package(gflags REQUIRED)
find_package(glog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(sodium REQUIRED IMPORTED_TARGET libsodium)
if(FASTDECODE_TESTS)
  find_package(GTest REQUIRED)
  include(GoogleTest)
endif()

if(FASTDECODE_SWORKER)
  pkg_check_modules(zmq REQUIRED IMPORTED_TARGET libzmq)
  if(NOT LIBTORCH_ROOT)
    file(GLOB venv_torch "${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch")
    if(venv_torch)
      set(LIBTORCH_ROOT "${venv_torch}" CACHE PATH "Folder with libtorch's include/ and lib/" FORCE)
    endif()
  endif()
  find_package(Libtorch REQUIRED)
  # What our targets link instead of libtorch::cpu: c10's logging macros are glog's.
  add_library(fastdecode_torch INTERFACE)
  target_link_libraries(fastdecode_torch INTERFACE libtorch::cpu glog::glog)
  target_compile_definitions(fastdecode_torch INTERFACE C10_USE_GLOG)
endif()

# ccache where there is one; the settings let it cache past the precompiled header
# and share between build folders.
find_program(FASTDECODE_CCACHE ccache)
if(FASTDECODE_CCACHE)
  set(launcher ${CMAKE_COMMAND} -E env
    CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
    CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${FASTDECODE_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
  endif()
endif()
