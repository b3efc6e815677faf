#include <charconv>
#include <string>

#include "engine/base/check.h"
#include "engine/io/content_hash.h"
#include "engine/io/mapped_file.h"
#include "engine/io/sha256.h"
#include "training/setup/open_data.h"

namespace tandem::training {
namespace {

namespace fs = std::filesystem;

// The inverse of engine::ToHex. REQUIRES: 64 hex digits.
engine::Sha256Digest DigestOf(const std::string& hex) {
  engine::Sha256Digest digest{};
  TANDEM_CHECK(hex.size() == 2 * digest.size());
  for (size_t i = 0; i < digest.size(); ++i) {
    const char* begin = hex.data() + 2 * i;
    TANDEM_CHECK(std::from_chars(begin, begin + 2, digest[i], 16).ptr == begin + 2);
  }
  return digest;
}

}  // namespace

std::string HashOfFiles(const std::vector<fs::path>& files, const fs::path& memo_dir) {
  if (files.empty()) return "";  // synthetic data
  std::string hash;
  engine::Sha256 digests;
  for (const fs::path& path : files) {
    const auto file = engine::MappedFile::Open(path);
    const engine::WeightFile contents{file, file->bytes()};
    hash = engine::ContentHashOf({&contents, 1}, memo_dir, {}, {});
    const engine::Sha256Digest digest = DigestOf(hash);
    digests.Update(std::as_bytes(std::span(digest)));
  }
  return files.size() == 1 ? hash : engine::ToHex(digests.Finish());
}

}  // namespace tandem::training
