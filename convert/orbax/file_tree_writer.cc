#include <algorithm>

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

  void Put(const std::string& key, std::span<const std::byte> value) override {
    const fs::path relative(key);
    if (relative.is_absolute() ||
        std::find(relative.begin(), relative.end(), "..") != relative.end()) {
      throw Error(ErrorCode::kInvalidArgument,
                  Quoted(key) + " cannot be the name of a file below " + dir_.string());
    }
    const fs::path path = dir_ / relative;
    fs::create_directories(path.parent_path());
    engine::FileDescriptor file = engine::CreateNewFile(path);
    engine::WriteAll(file, value, path);
    file.Close(path);
  }
  void Finish() override {}

 private:
  fs::path dir_;
};

}  // namespace

std::unique_ptr<KeyValueWriter> WriteFileTree(const fs::path& dir) {
  return std::make_unique<FileTreeWriter>(dir);
}

}  // namespace tandem::convert
