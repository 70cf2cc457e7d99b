# fastdecode_warnings: what every target of ours compiles with (nvcc has other flags).
add_library(fastdecode_warnings INTERFACE)
set(warnings -Wall -Wextra -Wconversion -Wno-psabi)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC 12 sees overlaps in std::string's own operator+ (GCC bug 105651).
  list(APPEND warnings -Wno-restrict)
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  list(APPEND warnings -Wthread-safety)
endif()
if(FASTDECODE_WERROR)
  list(APPEND warnings -Werror)
endif()
target_compile_options(fastdecode_warnings INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${warnings}>")
