# One static library per room, linked only to the rooms below it.
#
#   tandem_room(engine_kv DIR engine/kv DEPS engine_base engine_io)   a library of one or more folders; globs the sources
#   tandem_test(engine_kv_test DIR tests/engine/kv DEPS engine_kv)    one test program per room, of one or more folders

# The architecture of the program: x86_64 (v3: AVX2 and later) or arm64.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  set(TANDEM_ARCH arm64)
  # char is signed on x86-64: the sources mean one thing everywhere.
  set(arch_options -march=armv8-a -fsigned-char)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  set(TANDEM_ARCH x86_64)
  set(arch_options -march=x86-64-v3)
else()
  message(FATAL_ERROR "Tandem has no kernels for ${CMAKE_SYSTEM_PROCESSOR}. Build for x86_64 or aarch64.")
endif()

find_package(Threads REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(SQLite3 REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(CLI11 REQUIRED)
find_package(simdjson REQUIRED)
find_package(Boost 1.74 REQUIRED)
find_package(ICU REQUIRED COMPONENTS uc)
find_package(PkgConfig REQUIRED)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(LIBPQ REQUIRED IMPORTED_TARGET libpq)
# Compression formats of Parquet files.
find_package(ZLIB REQUIRED)
pkg_check_modules(SNAPPY REQUIRED IMPORTED_TARGET snappy)
pkg_check_modules(ZSTD REQUIRED IMPORTED_TARGET libzstd)

# tandem_options is part of the installed package; programs that link it choose their own warnings,
# optimisation and instruction set. tandem_build_options are for this build alone.
add_library(tandem_options INTERFACE)
add_library(tandem_build_options INTERFACE)
target_link_libraries(tandem_options INTERFACE $<BUILD_INTERFACE:tandem_build_options> Threads::Threads)
target_compile_features(tandem_options INTERFACE cxx_std_20)
# The second directory holds headers that replace a library's own (engine/base/README.md).
target_include_directories(tandem_options INTERFACE
  $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}> $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/engine/base/third_party>)
target_compile_options(tandem_options INTERFACE
  "$<BUILD_INTERFACE:${arch_options}>"
  # Fused multiply-adds are explicit: the compiler must never choose a rounding.
  -ffp-contract=off)
target_compile_options(tandem_build_options INTERFACE
  # Messages name files from the root of the repository, so equal sources make equal objects in any folder.
  -ffile-prefix-map=${CMAKE_SOURCE_DIR}/=
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Werror
  # g++ 12 sees overlapping copies in every `"literal" + std::string` (GCC bug 105651).
  -Wno-restrict)
if(TANDEM_UNITY)
  # In a unity build every source looks like a header, so g++ warns of classes with members of local types.
  target_compile_options(tandem_build_options INTERFACE -Wno-subobject-linkage)
endif()
# The tested code is optimised. Optimising the tests would cost more than it saves, and optimising their sanitizers'
# code takes longer than the rest of their compilation.
set(is_test $<BOOL:$<TARGET_PROPERTY:TANDEM_TEST>>)
if(CMAKE_BUILD_TYPE STREQUAL "Release")
  # -O3 is for the rooms that compute. It makes the others slower to compile, but no faster.
  set(computes $<BOOL:$<TARGET_PROPERTY:TANDEM_COMPUTES>>)
  target_compile_options(tandem_build_options INTERFACE $<IF:${is_test},-O1,$<IF:${computes},-O3,-O2>>)
elseif(TANDEM_SANITIZE)
  # -O1 keeps the sanitizer builds fast enough to run the whole suite.
  target_compile_options(tandem_build_options INTERFACE $<IF:${is_test},-O0,-O1> -g1)
endif()
if(TANDEM_SANITIZE)
  target_compile_options(tandem_build_options INTERFACE
    -fsanitize=${TANDEM_SANITIZE} -fno-omit-frame-pointer
    # False alarms of g++ 12 inside std::regex and std::function when sanitizers are on.
    -Wno-maybe-uninitialized)
  # Half of such a program is tables and checks. At a fixed address the tables need no relocations, which would take a
  # quarter of the file. gold compresses the debug information in half the time that ld takes without doing so.
  target_link_options(tandem_build_options INTERFACE -fsanitize=${TANDEM_SANITIZE}
    $<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:-no-pie> -fuse-ld=gold -Wl,--compress-debug-sections=zlib)
  if(TANDEM_SANITIZE MATCHES "undefined")
    target_compile_options(tandem_build_options INTERFACE -fno-sanitize-recover=undefined)
  endif()
  if(TANDEM_SANITIZE MATCHES "thread")
    # g++ 12 warns about atomic_thread_fence inside Boost headers; our code does not use it.
    target_compile_options(tandem_build_options INTERFACE -Wno-tsan)
  endif()
endif()

# STRICT adds -Wconversion, for rooms in which a lost bit is a bug.
# BATCH is the number of sources that a unity build compiles at once; TANDEM_UNITY_BATCH by default.
function(tandem_room NAME)
  cmake_parse_arguments(R "STRICT" "BATCH" "DIR;DEPS;LIBS" ${ARGN})
  if(NOT R_BATCH)
    set(R_BATCH ${TANDEM_UNITY_BATCH})
  endif()
  list(TRANSFORM R_DIR PREPEND ${CMAKE_SOURCE_DIR}/ OUTPUT_VARIABLE patterns)
  list(TRANSFORM patterns APPEND /*.cc)
  file(GLOB sources CONFIGURE_DEPENDS ${patterns})
  list(FILTER sources EXCLUDE REGEX "/main\\.cc$")
  if(sources)
    add_library(${NAME} STATIC ${sources})
    if(TANDEM_UNITY)
      set_target_properties(${NAME} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${R_BATCH})
    endif()
    target_link_libraries(${NAME} PUBLIC tandem_options ${R_DEPS} ${R_LIBS})
    if("${R_DIR}" MATCHES "^(engine|training|bench)" AND
       NOT "${R_DIR}" MATCHES "^(engine/(hub|tools|model/families)|training($|;|/(spec|setup|plan|observe|checkpoint|lora)))")
      set_target_properties(${NAME} PROPERTIES TANDEM_COMPUTES ON)
    endif()
    if(R_STRICT)
      target_compile_options(${NAME} PRIVATE -Wconversion)
    endif()
    # Only code that computes justifies the time of optimising sanitizer builds: -Og takes two thirds of it.
    if(TANDEM_SANITIZE AND NOT "${R_DIR}" MATCHES "^engine")
      target_compile_options(${NAME} PRIVATE -Og)
    endif()
  else()
    add_library(${NAME} INTERFACE)
    target_link_libraries(${NAME} INTERFACE tandem_options ${R_DEPS} ${R_LIBS})
  endif()
endfunction()

# ALONE leaves out tests_support, and with it every room that this links.
function(tandem_test NAME)
  cmake_parse_arguments(T "ALONE" "LABEL;TIMEOUT" "DIR;DEPS" ${ARGN})
  list(TRANSFORM T_DIR PREPEND ${CMAKE_SOURCE_DIR}/ OUTPUT_VARIABLE patterns)
  list(TRANSFORM patterns APPEND /*_test.cc)
  file(GLOB sources CONFIGURE_DEPENDS ${patterns})
  if(NOT sources)
    return()
  endif()
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 600)
  endif()
  add_executable(${NAME} ${sources})
  if(TANDEM_UNITY)
    set_target_properties(${NAME} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
  endif()
  set_target_properties(${NAME} PROPERTIES TANDEM_TEST ON RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  set(support tests_support)
  if(T_ALONE)
    set(support "")
  endif()
  target_link_libraries(${NAME} PRIVATE ${T_DEPS} ${support} GTest::gtest GTest::gtest_main)
  add_test(NAME ${NAME} COMMAND ${NAME})
  set_tests_properties(${NAME} PROPERTIES TIMEOUT ${T_TIMEOUT} LABELS "${T_LABEL}")
endfunction()
