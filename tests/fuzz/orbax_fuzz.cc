// An Orbax checkpoint of one array: _METADATA, a zero byte, the array's description, a zero byte,
// and a chunk. A description that begins with a 2 is .zarray, any other is zarr.json.

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "convert/orbax/orbax_checkpoint.h"
#include "tests/fuzz/strangers_file.h"

namespace {

using namespace tandem;
namespace fs = std::filesystem;

// Arrays that claim more bytes than this are not read.
constexpr int64_t kMaxRead = 1 << 20;

const fs::path& Directory() {
  static const fs::path dir = [] {
    auto path = fs::path("/dev/shm") / ("orbax_fuzz." + std::to_string(getpid()));
    fs::create_directories(path / "a/c");
    return path;
  }();
  return dir;
}

void Write(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string all(reinterpret_cast<const char*>(data), size);
  const size_t first = std::min(all.find('\0'), all.size());
  const size_t second = std::min(all.find('\0', first + 1), all.size());
  const std::string tree = all.substr(0, first);
  std::string array = first < all.size() ? all.substr(first + 1, second - first - 1) : "";
  const std::string chunk = second < all.size() ? all.substr(second + 1) : "";
  const bool is_v2 = array.starts_with('2');
  if (is_v2) array.erase(0, 1);
  std::error_code ignored;
  fs::remove(Directory() / "a/.zarray", ignored);
  fs::remove(Directory() / "a/zarr.json", ignored);
  Write(Directory() / "_METADATA", tree);
  Write(Directory() / (is_v2 ? "a/.zarray" : "a/zarr.json"), array);
  // The chunk's names for arrays of zero, one and two axes.
  for (const char* name : {"a/0", "a/0.0", "a/c/0"}) Write(Directory() / name, chunk);
  engine::ReadStrangersFile([] {
    const auto checkpoint = convert::OrbaxCheckpoint::Open(Directory());
    for (const auto& leaf : checkpoint.leaves()) {
      if (!leaf.array) continue;
      engine::Require(leaf.array->bytes() >= 0 && leaf.array->element_bytes >= 0);
      engine::Require(leaf.array->shape.size() == leaf.array->chunk_shape.size());
      engine::ReadStrangersFile([&] { checkpoint.CheckStored(leaf); });
      if (leaf.array->bytes() > kMaxRead) continue;
      engine::ReadStrangersFile([&] {
        std::vector<std::byte> bytes(static_cast<size_t>(leaf.array->bytes()));
        checkpoint.Read(leaf, bytes);
      });
    }
  });
  return 0;
}
