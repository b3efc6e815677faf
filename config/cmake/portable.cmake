# tandem_portable: the same program as one static file, for every x86-64 Linux (config/packaging/README.md).
# `cmake --build build/release --target tandem_portable` writes build/release/portable/tandem and tandem.debug.

set(packaging ${CMAKE_SOURCE_DIR}/config/packaging)
set(portable_dir ${CMAKE_BINARY_DIR}/portable)

# ICU keeps all data in one object of 31 MB; the program reads three items of it.
find_library(TANDEM_ICU_DATA NAMES libicudata.a)
add_custom_command(OUTPUT ${portable_dir}/icu_data.o
  COMMAND ${packaging}/trim_icu_data.py ${TANDEM_ICU_DATA} ${portable_dir}/icu_data.S
  COMMAND ${CMAKE_CXX_COMPILER} -c ${portable_dir}/icu_data.S -o ${portable_dir}/icu_data.o
  DEPENDS ${packaging}/trim_icu_data.py COMMENT "Trimming ICU's data" VERBATIM)

add_custom_command(OUTPUT ${portable_dir}/simdjson/simdjson.cpp
  COMMAND ${packaging}/fetch_simdjson ${portable_dir}/simdjson
  DEPENDS ${packaging}/fetch_simdjson COMMENT "Fetching Debian's source of simdjson" VERBATIM)

add_custom_command(OUTPUT ${portable_dir}/libpq/version
  BYPRODUCTS ${portable_dir}/libpq/libpgcommon.a ${portable_dir}/libpq/libpgport.a
  COMMAND ${packaging}/fetch_libpq ${portable_dir}/libpq
  DEPENDS ${packaging}/fetch_libpq COMMENT "Fetching the parts of Debian's static libpq" VERBATIM)
add_custom_target(tandem_static_libpq DEPENDS ${portable_dir}/libpq/version)

# Third-party code of which Debian has no static archive, and the start of the portable program.
add_library(tandem_portable_parts OBJECT EXCLUDE_FROM_ALL
  ${packaging}/portable_start.cc ${packaging}/static_fmt.cc ${packaging}/static_spdlog.cc
  ${packaging}/static_libpq.cc
  ${portable_dir}/simdjson/simdjson.cpp)
target_compile_options(tandem_portable_parts PRIVATE -O3 -march=x86-64-v3)
target_compile_definitions(tandem_portable_parts PRIVATE SPDLOG_COMPILED_LIB SPDLOG_FMT_EXTERNAL)
# The library chooses its code for the CPU at run time, from all that it compiles.
set_source_files_properties(${portable_dir}/simdjson/simdjson.cpp PROPERTIES COMPILE_OPTIONS "-march=x86-64")

# The rooms, by file: linked as targets, they would bring the shared libraries.
tandem_link_closure(rooms server_cli)
set(room_files)
foreach(room IN LISTS rooms)
  get_target_property(type ${room} TYPE)
  if(type STREQUAL "STATIC_LIBRARY")
    list(APPEND room_files $<TARGET_FILE:${room}>)
  endif()
endforeach()
add_executable(tandem_portable EXCLUDE_FROM_ALL
  $<TARGET_OBJECTS:tandem> $<TARGET_OBJECTS:tandem_portable_parts> ${portable_dir}/icu_data.o)
set_target_properties(tandem_portable PROPERTIES
  LINKER_LANGUAGE CXX OUTPUT_NAME tandem RUNTIME_OUTPUT_DIRECTORY ${portable_dir})
add_dependencies(tandem_portable ${rooms} tandem_static_libpq)
target_link_libraries(tandem_portable PRIVATE
  -Wl,--start-group ${room_files} ${TANDEM_LLGUIDANCE} -Wl,--end-group
  -Wl,--start-group -l:libpq.a ${portable_dir}/libpq/libpgcommon.a ${portable_dir}/libpq/libpgport.a -Wl,--end-group
  -lsqlite3 -lyaml-cpp -lsnappy -lz -lzstd -lpcre2-8 -licuuc -lssl -lcrypto -lm)
# ld warns of getaddrinfo and dlopen: portable_start.cc keeps the first from loading modules, and training/dist
# refuses to call the other in a static program.
target_link_options(tandem_portable PRIVATE -static-pie -Wl,--gc-sections,-z,pack-relative-relocs,--build-id)
add_custom_command(TARGET tandem_portable POST_BUILD
  COMMAND ${CMAKE_OBJCOPY} --only-keep-debug tandem tandem.debug
  COMMAND ${CMAKE_STRIP} tandem
  COMMAND ${CMAKE_OBJCOPY} --add-gnu-debuglink=tandem.debug tandem
  WORKING_DIRECTORY ${portable_dir} VERBATIM)
