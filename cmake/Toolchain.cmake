# What makes builds fast, where it is there: lld and ccache.
find_program(FASTDECODE_LLD ld.lld)
if(FASTDECODE_LLD)
  add_link_options(-fuse-ld=lld)
endif()

# The settings let ccache see past a precompiled header and share between build folders.
# The precompiled header itself must say the same each time that it is made: GCC keeps it
# readable with -fpch-preprocess, Clang leaves its time of making out.
find_program(FASTDECODE_CCACHE ccache)
if(FASTDECODE_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env
    CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
    "CCACHE_BASEDIR=${CMAKE_SOURCE_DIR}" CCACHE_NOHASHDIR=1 "${FASTDECODE_CCACHE}")
  set(CMAKE_CUDA_COMPILER_LAUNCHER "${CMAKE_CXX_COMPILER_LAUNCHER}")
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
  else()
    add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:SHELL:-Xclang -fno-pch-timestamp>")
  endif()
endif()
