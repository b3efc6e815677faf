#include "engine/io/block_writer.h"

#include <algorithm>
#include <cstring>

namespace tandem::engine {

BlockWriter::BlockWriter(const std::filesystem::path& path)
    : path_(path), file_(CreateNewFile(path)), block_(kHugePageBytes) {}

void BlockWriter::Write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    if (filled_ == 0 && bytes.size() >= kHugePageBytes) {
      WriteAll(file_, bytes.first(kHugePageBytes), path_);
      bytes = bytes.subspan(kHugePageBytes);
      continue;
    }
    const size_t count = std::min(bytes.size(), kHugePageBytes - filled_);
    std::memcpy(block_.data() + filled_, bytes.data(), count);
    filled_ += count;
    bytes = bytes.subspan(count);
    if (filled_ < kHugePageBytes) continue;
    WriteAll(file_, block_.span(), path_);
    filled_ = 0;
  }
}

void BlockWriter::Finish() {
  WriteAll(file_, block_.span().first(filled_), path_);
  filled_ = 0;
  file_.Close(path_);
}

}  // namespace tandem::engine
