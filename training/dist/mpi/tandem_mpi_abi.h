#pragma once

#include <cstddef>
#include <cstdint>

// The border between tandem and tandem_mpi.so. The program does not link MPI; the library does.
// Functions return 0, or a code for which `describe` has a text. `group` numbers a set of ranks: 0
// is all of them, `split` makes others.
extern "C" {

struct TandemMpiFunctions {
  uint32_t version;
  int (*init)(int* rank, int* size);
  int (*split)(int group, int color, int* part, int* rank, int* size);
  int (*all_to_all)(int group, const void* send, void* receive, int bytes);
  int (*all_gather)(int group, const void* send, void* receive, int bytes);
  int (*broadcast)(int group, void* data, int bytes, int root);
  int (*barrier)(int group);
  int (*finalize)();
  void (*describe)(int code, char* text, size_t size);
};

// The only exported symbol: const TandemMpiFunctions* tandem_mpi_functions().
}

inline constexpr uint32_t kTandemMpiVersion = 2;
inline constexpr const char* kTandemMpiSymbol = "tandem_mpi_functions";
