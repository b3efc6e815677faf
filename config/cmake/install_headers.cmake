# Installs tandem_public_headers and every header of this project that they include, directly or not.
# Runs at install time, so a new include needs no new entry.
cmake_policy(VERSION 3.25)  # install scripts begin without policies
set(waiting ${tandem_public_headers})
set(found)
while(waiting)
  list(POP_FRONT waiting header)
  if(header IN_LIST found)
    continue()
  endif()
  list(APPEND found ${header})
  file(STRINGS ${tandem_source_dir}/${header} lines REGEX "^#include \"")
  foreach(line IN LISTS lines)
    string(REGEX REPLACE "^#include \"([^\"]+)\".*" "\\1" included "${line}")
    list(APPEND waiting ${included})
  endforeach()
endwhile()

foreach(header IN LISTS found)
  cmake_path(GET header PARENT_PATH folder)
  file(INSTALL DESTINATION "${CMAKE_INSTALL_PREFIX}/${tandem_include_dir}/${folder}" TYPE FILE
    FILES "${tandem_source_dir}/${header}")
endforeach()
