# Toolchain for 64-bit Arm, on a Debian machine of another architecture:
#   apt-get install g++-aarch64-linux-gnu qemu-user
#   config/packaging/fetch_arm64_root build/arm64_root
#   cmake --preset arm64 && cmake --build build/arm64 --target tandem
# The root holds the arm64 packages of BUILD_PACKAGES and of the tests. Programs of the build, tests included, run under
# qemu with its libraries.

set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(TANDEM_ARM64_ROOT ${CMAKE_CURRENT_LIST_DIR}/../../build/arm64_root CACHE PATH
  "Folder that config/packaging/fetch_arm64_root filled")
# Checks of CMake itself configure in folders of their own, and need the same root.
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES TANDEM_ARM64_ROOT)
cmake_path(ABSOLUTE_PATH TANDEM_ARM64_ROOT NORMALIZE OUTPUT_VARIABLE root)

set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_SYSROOT ${root})
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH ${root})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${root})
set(ENV{PKG_CONFIG_LIBDIR} ${root}/usr/lib/aarch64-linux-gnu/pkgconfig:${root}/usr/share/pkgconfig)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -cpu max -L ${root})
