#pragma once

#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <string>

namespace tandem::bench {

// `tandem bench objects URL`: uploads files of random bytes below the URL, fetches them again and
// removes them. Reports the rates of both. bench/objects.py compares them with curl.
struct ObjectsBenchOptions {
  std::string url;
  std::filesystem::path dir;  // for the files; on a disk that is faster than the store
  int64_t file_mib = 256;
  int files = 2;
  int connections = 8;
  int rounds = 3;
};

int RunObjectsBench(std::ostream& out, const ObjectsBenchOptions& options);

}  // namespace tandem::bench
