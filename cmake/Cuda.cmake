# The CUDA plugin's tools, wanted by FASTDECODE_CUDA: AUTO takes them where nvcc and
# all of libtorch's CUDA half are there, ON insists, OFF does without.
#
# Output  FASTDECODE_HAVE_CUDA     whether the plugin is built
#         fastdecode_cuda_plugin() makes it; the only place where CUDA is compiled
set(FASTDECODE_HAVE_CUDA FALSE)
set(cuda_reason "")
if(NOT FASTDECODE_SWORKER)
  set(cuda_reason "FASTDECODE_SWORKER is OFF")
elseif(NOT FASTDECODE_CUDA)
  set(cuda_reason "FASTDECODE_CUDA is OFF")
else()
  find_program(CMAKE_CUDA_COMPILER nvcc HINTS "${LIBTORCH_CUDA_ROOT}/bin")
  if(NOT CMAKE_CUDA_COMPILER)
    unset(CMAKE_CUDA_COMPILER CACHE) # CMake takes a NOTFOUND for the name of a compiler.
    set(cuda_reason "no nvcc in PATH or ${LIBTORCH_CUDA_ROOT}/bin")
  elseif(NOT TARGET libtorch::cuda)
    set(cuda_reason "libtorch's CUDA half lacks: ${Libtorch_CUDA_MISSING} (scripts/setup --cuda)")
  endif()
endif()

if(NOT cuda_reason)
  set(FASTDECODE_HAVE_CUDA TRUE)
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 86-real 90) # A10; H100 and H200, with PTX for what follows.
  endif()
  enable_language(CUDA)
  # CMake 3.25.1 does not know that nvcc 13 has C++20; told before enable_language it
  # fails its own compiler check.
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  endif()
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  set(CMAKE_CUDA_EXTENSIONS OFF)
  set(CMAKE_CUDA_RUNTIME_LIBRARY None) # libtorch::cuda brings the shared one.
  message(STATUS "CUDA plugin: built for ${CMAKE_CUDA_ARCHITECTURES} with nvcc ${CMAKE_CUDA_COMPILER_VERSION}")
elseif(FASTDECODE_CUDA STREQUAL "AUTO" OR NOT FASTDECODE_CUDA)
  message(STATUS "CUDA plugin: not built: ${cuda_reason}")
else()
  message(FATAL_ERROR "FASTDECODE_CUDA=${FASTDECODE_CUDA}, but ${cuda_reason}")
endif()

# fastdecode_cuda_plugin(NAME SRCS a.cc b.cu ... DEPS c ...)
# The library that dlopen takes: lib/lib<NAME>.so. It shows nothing but what its sources
# mark visible, and every symbol that it uses is found at link time.
function(fastdecode_cuda_plugin name)
  cmake_parse_arguments(arg "" "" "SRCS;DEPS" ${ARGN})
  add_library(${name} MODULE ${arg_SRCS})
  target_include_directories(${name} PRIVATE "${CMAKE_SOURCE_DIR}/src")
  target_link_libraries(${name} PRIVATE ${arg_DEPS} libtorch::cuda fastdecode_torch fastdecode_warnings)
  set_target_properties(${name} PROPERTIES CXX_VISIBILITY_PRESET hidden CUDA_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON)
  # A GNU linker drops libtorch_cuda as unused if only its kernels are called through the
  # dispatcher, and with it the CUDA backend that opening the plugin must register.
  target_link_options(${name} PRIVATE LINKER:--no-undefined LINKER:--no-as-needed)
  install(TARGETS ${name} LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
endfunction()
