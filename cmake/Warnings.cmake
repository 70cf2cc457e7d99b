# fastdecode_warnings: what every target of ours compiles with.
add_library(fastdecode_warnings INTERFACE)
target_compile_options(fastdecode_warnings INTERFACE -Wall -Wextra -Wconversion -Wno-psabi)
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  target_compile_options(fastdecode_warnings INTERFACE -Wthread-safety)
endif()
if(FASTDECODE_WERROR)
  target_compile_options(fastdecode_warnings INTERFACE -Werror)
endif()
