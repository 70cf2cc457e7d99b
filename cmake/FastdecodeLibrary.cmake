# fastdecode_library(NAME SRCS a.cc ... DEPS b ... [TORCH])
# A static library of ours. Headers are included from src/ ("common/base/status.h").
# TORCH: compiles against libtorch, with the shared precompiled header.
function(fastdecode_library name)
  cmake_parse_arguments(arg "TORCH" "" "SRCS;DEPS" ${ARGN})
  add_library(${name} STATIC ${arg_SRCS})
  target_include_directories(${name} PUBLIC "${CMAKE_SOURCE_DIR}/src")
  target_link_libraries(${name} PUBLIC ${arg_DEPS} PRIVATE fastdecode_warnings)
  if(arg_TORCH)
    fastdecode_torch_target(${name})
  endif()
endfunction()

# fastdecode_program(NAME SRCS main.cc ... DEPS ... [TORCH] [INSTALL])
# In the build tree's bin/. INSTALL: users run it, so it is installed too.
function(fastdecode_program name)
  cmake_parse_arguments(arg "TORCH;INSTALL" "" "SRCS;DEPS" ${ARGN})
  add_executable(${name} ${arg_SRCS})
  target_include_directories(${name} PRIVATE "${CMAKE_SOURCE_DIR}/src")
  target_link_libraries(${name} PRIVATE ${arg_DEPS} fastdecode_warnings)
  if(arg_TORCH)
    fastdecode_torch_target(${name})
  endif()
  if(arg_INSTALL)
    install(TARGETS ${name} RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
  endif()
endfunction()

# fastdecode_test(NAME SRCS a_test.cc ... DEPS ... [TORCH] [LABELS unit] [TIMEOUT seconds])
# A GoogleTest program, one entry for ctest.
function(fastdecode_test name)
  cmake_parse_arguments(arg "TORCH" "TIMEOUT" "SRCS;DEPS;LABELS" ${ARGN})
  set(torch "")
  if(arg_TORCH)
    set(torch TORCH)
  endif()
  fastdecode_program(${name} ${torch} SRCS ${arg_SRCS} DEPS ${arg_DEPS} GTest::gmock GTest::gtest_main)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests")
  add_test(NAME ${name} COMMAND ${name})
  fastdecode_test_properties(${name} LABELS ${arg_LABELS} TIMEOUT ${arg_TIMEOUT})
endfunction()

# fastdecode_python_test(NAME SCRIPT a_test.py [ARGS ...] [LABELS unit] [TIMEOUT seconds])
# A Python program (unittest.main() or one that exits 0), run by the project's Python.
function(fastdecode_python_test name)
  cmake_parse_arguments(arg "" "SCRIPT;TIMEOUT" "ARGS;LABELS" ${ARGN})
  add_test(NAME ${name} COMMAND "${FASTDECODE_PYTHON}" "${CMAKE_CURRENT_SOURCE_DIR}/${arg_SCRIPT}" ${arg_ARGS}
    WORKING_DIRECTORY "${CMAKE_SOURCE_DIR}")
  fastdecode_test_properties(${name} LABELS ${arg_LABELS} TIMEOUT ${arg_TIMEOUT})
endfunction()

function(fastdecode_test_properties name)
  cmake_parse_arguments(arg "" "TIMEOUT" "LABELS" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 600)
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT}
    ENVIRONMENT "${FASTDECODE_TEST_ENVIRONMENT}")
  if("integration" IN_LIST arg_LABELS) # Several processes, and deadlines for noticing a fault.
    set_tests_properties(${name} PROPERTIES RUN_SERIAL TRUE)
  endif()
endfunction()

# The first torch target builds the precompiled header that the others reuse.
function(fastdecode_torch_target name)
  target_link_libraries(${name} PUBLIC fastdecode_torch)
  if(NOT TARGET fastdecode_torch_pch)
    if(NOT EXISTS "${CMAKE_BINARY_DIR}/torch_pch.cc") # Written once: a newer one means compiling all again.
      file(WRITE "${CMAKE_BINARY_DIR}/torch_pch.cc" "")
    endif()
    add_library(fastdecode_torch_pch STATIC "${CMAKE_BINARY_DIR}/torch_pch.cc")
    target_link_libraries(fastdecode_torch_pch PUBLIC fastdecode_torch PRIVATE fastdecode_warnings)
    target_precompile_headers(fastdecode_torch_pch PRIVATE <ATen/ATen.h>)
  endif()
  target_precompile_headers(${name} REUSE_FROM fastdecode_torch_pch)
  # GCC refuses a precompiled header made with -fPIC where it is told -fPIE.
  get_target_property(type ${name} TYPE)
  if(type STREQUAL "EXECUTABLE")
    set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${name} PRIVATE -fPIC)
  endif()
endfunction()
