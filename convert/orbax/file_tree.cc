#include <algorithm>

#include "convert/orbax/key_values.h"
#include "engine/base/error.h"
#include "engine/io/mapped_file.h"

namespace tandem::convert {
namespace {

namespace fs = std::filesystem;

// A large model's checkpoint has some hundred thousand chunks.
constexpr size_t kMaxFiles = size_t{1} << 22;

class FileTree : public KeyValues {
 public:
  explicit FileTree(fs::path dir) : dir_(std::move(dir)) {
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(dir_)) {
      if (!fs::is_regular_file(entry.symlink_status())) continue;
      if (keys_.size() == kMaxFiles) {
        throw Error(ErrorCode::kDataLoss, dir_.string() + ": the directory has more than " +
                                              std::to_string(kMaxFiles) +
                                              " files, which is the limit");
      }
      keys_.push_back(entry.path().lexically_relative(dir_).generic_string());
    }
    std::sort(keys_.begin(), keys_.end());
  }

  std::optional<StoredBytes> Find(const std::string& key) const override {
    if (!std::binary_search(keys_.begin(), keys_.end(), key)) return std::nullopt;
    auto file = engine::MappedFile::Open(dir_ / key);
    return StoredBytes{file, file->bytes(), file.get()};
  }

  std::vector<std::string> Keys() const override { return keys_; }

 private:
  fs::path dir_;
  std::vector<std::string> keys_;
};

}  // namespace

std::unique_ptr<KeyValues> OpenFileTree(const fs::path& dir) {
  return std::make_unique<FileTree>(dir);
}

}  // namespace tandem::convert
