# Applies FASTDECODE_SANITIZE to every target.
if(FASTDECODE_SANITIZE)
  list(JOIN FASTDECODE_SANITIZE "," sanitizers)
  add_compile_options(-fsanitize=${sanitizers} -fno-omit-frame-pointer -fno-sanitize-recover=all -g1)
  add_link_options(-fsanitize=${sanitizers})
endif()
