# Formats of the KV cache that users wrote (docs/kv_formats.md).
set(FASTDECODE_KV_CODECS "" CACHE STRING
  "Source files of KV codecs to compile in, separated by semicolons; relative to the source folder")

# fastdecode_user_codecs(NAME a.cc ...)
# An object library of these codecs and of the list that kernels/user_codecs.cc makes of
# them. a.cc defines the constant fastdecode::kernels::a.
function(fastdecode_user_codecs name)
  set(list "")
  set(sources "")
  foreach(file ${ARGN})
    get_filename_component(path "${file}" ABSOLUTE BASE_DIR "${CMAKE_SOURCE_DIR}")
    get_filename_component(codec "${file}" NAME_WE)
    if(NOT EXISTS "${path}")
      message(FATAL_ERROR "FASTDECODE_KV_CODECS: ${path} is not there")
    endif()
    if(NOT codec MATCHES "^[A-Za-z_][A-Za-z0-9_]*$")
      message(FATAL_ERROR "FASTDECODE_KV_CODECS: ${file}: the name before the dot names a C++ constant too, "
        "so expected letters, digits and underscores")
    endif()
    string(APPEND list "FD_KV_CODEC(${codec})\n")
    list(APPEND sources "${path}")
  endforeach()
  set(generated "${CMAKE_CURRENT_BINARY_DIR}/${name}")
  file(CONFIGURE OUTPUT "${generated}/kv_codec_list.inc" CONTENT "${list}")
  add_library(${name} OBJECT "${CMAKE_SOURCE_DIR}/kernels/user_codecs.cc" ${sources})
  target_include_directories(${name} PRIVATE "${CMAKE_SOURCE_DIR}" "${generated}")
  target_compile_options(${name} PRIVATE -O3) # As the kernels are, in every build type.
  target_link_libraries(${name} PRIVATE fastdecode_warnings)
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
endfunction()
