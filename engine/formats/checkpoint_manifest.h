#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::engine {

// manifest.json, version 1, which a checkpoint directory of ours has: what is in it, and of every
// other file how long it is and what it hashes to.
struct CheckpointManifest {
  struct File {
    std::string name;  // plain, of the same directory
    int64_t bytes = 0;
    std::string sha256;  // lower-case hex
  };
  std::string kind;                  // "full", "params", "adapter"
  std::string layout = "unstacked";  // or "stacked" (stacked_tensors.h)
  std::string arch;                  // of the family
  int64_t step = 0;
  std::string isa;  // of the arithmetic that wrote it; may be empty
  std::vector<File> files;

  // Files of tensors whose names begin so ("model", "optim"), by name.
  std::vector<std::string> TensorFiles(std::string_view stem) const;
  std::string ToJson() const;
};

inline constexpr const char* kManifestFile = "manifest.json";

// Ignores unknown keys. Throws kDataLoss naming `source` and the field, or the file that is listed
// twice; throws kUnsupported for another version.
CheckpointManifest ParseCheckpointManifest(std::string_view json, const std::string& source);
// Whether the text is a manifest of a checkpoint at all, of whatever version.
bool IsCheckpointManifest(std::string_view json);

// Throws kDataLoss naming the file that is missing or not as long as the manifest says; with
// `hashes`, also one whose content is another, reading all of it.
void CheckManifestFiles(const CheckpointManifest& manifest, const std::filesystem::path& dir,
                        bool hashes);

}  // namespace tandem::engine
