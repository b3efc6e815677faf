#include <algorithm>
#include <set>
#include <utility>

#include "convert/orbax/key_value_writer.h"
#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/io/posix_file.h"

namespace tandem::convert {
namespace {

namespace fs = std::filesystem;

class FileTreeWriter : public KeyValueWriter {
 public:
  explicit FileTreeWriter(fs::path dir) : dir_(std::move(dir)) {}

  StoredValue Put(const std::string& key, std::span<const std::byte> value) override {
    const fs::path path = PathOf(key);
    fs::create_directories(path.parent_path());
    engine::FileDescriptor file = engine::CreateNewFile(path);
    engine::WriteAll(file, value, path);
    file.Close(path);
    files_.push_back(key);
    fs::path changed = dir_;
    changed_.insert(changed);
    for (const fs::path& part : fs::path(key)) changed_.insert(changed /= part);
    return {.bytes = value.size(), .inlined = std::nullopt};
  }

  bool Restore(const std::string& key, const StoredValue& value) override {
    const fs::path path = PathOf(key);
    std::error_code absent;
    if (!fs::is_regular_file(fs::symlink_status(path, absent)) || value.inlined) return false;
    files_.push_back(key);
    return fs::file_size(path, absent) == value.bytes && !absent;
  }

  std::vector<std::string> Files() const override { return files_; }
  std::vector<fs::path> TakeChanged() override {
    const std::set<fs::path> changed = std::exchange(changed_, {});
    return {changed.begin(), changed.end()};
  }
  void Finish() override {}

 private:
  fs::path PathOf(const std::string& key) const {
    const fs::path relative(key);
    if (relative.is_absolute() ||
        std::find(relative.begin(), relative.end(), "..") != relative.end()) {
      throw Error(ErrorCode::kInvalidArgument,
                  Quoted(key) + " is not a valid file name in " + dir_.string());
    }
    return dir_ / relative;
  }

  fs::path dir_;
  std::vector<std::string> files_;
  std::set<fs::path> changed_;
};

}  // namespace

std::unique_ptr<KeyValueWriter> WriteFileTree(const fs::path& dir) {
  return std::make_unique<FileTreeWriter>(dir);
}

}  // namespace tandem::convert
