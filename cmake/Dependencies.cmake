# Debian's packages, and libtorch for the S-worker.
find_package(Threads REQUIRED)
find_package(gflags REQUIRED)
find_package(glog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(sodium REQUIRED IMPORTED_TARGET libsodium)
pkg_check_modules(ibverbs REQUIRED IMPORTED_TARGET libibverbs)
if(FASTDECODE_TESTS)
  find_package(GTest REQUIRED)
endif()

# The project's Python: its venv's where there is one.
find_program(FASTDECODE_PYTHON python3 HINTS "${CMAKE_SOURCE_DIR}/.venv/bin" REQUIRED)

if(FASTDECODE_SWORKER)
  # Not through pkg-config: what libzmq itself was built with comes along there, in another
  # order the second time, and all would be compiled again.
  find_path(ZMQ_INCLUDE_DIR zmq.hpp REQUIRED)
  find_library(ZMQ_LIBRARY zmq REQUIRED)
  add_library(fastdecode_zmq INTERFACE)
  target_include_directories(fastdecode_zmq SYSTEM INTERFACE "${ZMQ_INCLUDE_DIR}")
  target_link_libraries(fastdecode_zmq INTERFACE "${ZMQ_LIBRARY}")
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
  # Named here because CMake leaves folders of the source tree, such as .venv, out of
  # the RPATH that it makes from the libraries linked.
  get_filename_component(libtorch_folder "${Libtorch_torch_cpu}" DIRECTORY)
  target_link_options(fastdecode_torch INTERFACE "LINKER:-rpath,${libtorch_folder}")
endif()
