// An OCDBT database: two bytes of length and the body of its manifest, then likewise each node of
// its data file. The harness adds lengths and checksums, so that inputs reach the code behind them.

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "convert/orbax/key_values.h"
#include "engine/io/crc32c.h"
#include "tests/fuzz/strangers_file.h"

namespace {

using namespace tandem;

std::string Little(uint64_t value, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> 8 * i);
  return out;
}

std::string Object(const std::string& magic, const std::string& body) {
  std::string out = magic + Little(magic.size() + 8 + 2 + body.size() + 4, 8) + '\0' + '\0' + body;
  return out + Little(engine::Crc32c(0, std::as_bytes(std::span(out))), 4);
}

// One directory in memory for all runs of a process.
const std::filesystem::path& Directory() {
  static const std::filesystem::path dir = [] {
    auto path = std::filesystem::path("/dev/shm") / ("ocdbt_fuzz." + std::to_string(getpid()));
    std::filesystem::create_directories(path / "d");
    return path;
  }();
  return dir;
}

void Write(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string all(reinterpret_cast<const char*>(data), size);
  std::string manifest;
  std::string nodes;
  bool is_first = true;
  for (size_t at = 0; at + 2 <= all.size();) {
    const size_t length = data[at] | static_cast<size_t>(data[at + 1]) << 8;
    const std::string body = all.substr(at + 2, length);
    at += 2 + length;
    if (is_first) {
      manifest = Object("\x0c\xdb\x3a\x2a", body);
    } else {
      nodes += Object("\x0c\xdb\x20\xde", body);
    }
    is_first = false;
  }
  Write(Directory() / "manifest.ocdbt", manifest);
  Write(Directory() / "d/x", nodes);
  engine::ReadStrangersFile([] {
    const auto values = convert::OpenOcdbt(Directory());
    std::string last;
    for (const std::string& key : values->Keys()) {
      engine::Require(key > last || last.empty());
      last = key;
      const auto value = values->Find(key);
      engine::Require(value.has_value());
      unsigned sum = 0;
      for (const std::byte b : value->bytes) sum += std::to_integer<unsigned>(b);
      engine::Require(sum <= value->bytes.size() * 255);
    }
  });
  return 0;
}
