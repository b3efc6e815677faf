#include "training/step/tensor_files.h"

#include <algorithm>
#include <cstdio>

namespace tandem::training {

namespace fs = std::filesystem;

std::string TensorFileName(const std::string& kind, size_t i, size_t n) {
  if (n == 1) return kind + ".safetensors";
  char numbers[48];
  std::snprintf(numbers, sizeof numbers, "-%05zu-of-%05zu.safetensors", i + 1, n);
  return kind + numbers;
}

TensorFiles TensorFiles::Open(const fs::path& dir, const std::string& kind) {
  TensorFiles files;
  std::vector<fs::path> paths;
  std::error_code absent;
  for (const fs::directory_entry& entry : fs::directory_iterator(dir, absent)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kind + "-") && name.ends_with(".safetensors")) {
      paths.push_back(entry.path());
    }
  }
  if (paths.empty()) paths.push_back(dir / TensorFileName(kind, 0, 1));
  std::sort(paths.begin(), paths.end());
  for (const fs::path& path : paths) files.files_.push_back(engine::SafetensorsFile::Open(path));
  return files;
}

const engine::ConstTensorView* TensorFiles::Find(std::string_view name) const {
  for (const engine::SafetensorsFile& file : files_) {
    if (const engine::ConstTensorView* found = file.Find(name)) return found;
  }
  return nullptr;
}

}  // namespace tandem::training
