#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::engine {

// manifest.json, version 1, of a Tandem checkpoint directory. It describes the checkpoint and
// records the length and SHA-256 of every other file.
struct CheckpointManifest {
  struct File {
    std::string name;  // plain, in the same directory
    int64_t bytes = 0;
    std::string sha256;  // lower-case hex
  };
  std::string kind;                  // "full", "params", "adapter"
  std::string layout = "unstacked";  // or "stacked" (stacked_tensors.h)
  std::string arch;                  // family name
  int64_t step = 0;
  std::string isa;  // ISA of the writer's arithmetic; may be empty
  std::vector<File> files;

  // Sorted names of the tensor files `<stem>.safetensors` and `<stem>-*.safetensors`; stems are
  // "model" and "optim".
  std::vector<std::string> TensorFiles(std::string_view stem) const;
  std::string ToJson() const;
};

inline constexpr const char* kManifestFile = "manifest.json";

// Ignores unknown keys. Throws kDataLoss naming `source` and the field, or the file that is listed
// twice. Throws kUnsupported for another version, kind or layout.
CheckpointManifest ParseCheckpointManifest(std::string_view json, const std::string& source);
// Whether the text is a checkpoint manifest of any version.
bool IsCheckpointManifest(std::string_view json);

// Throws kDataLoss naming a file that is missing or has another length than the manifest records.
// With `hashes`, reads every file and checks its SHA-256 too.
void CheckManifestFiles(const CheckpointManifest& manifest, const std::filesystem::path& dir,
                        bool hashes);

}  // namespace tandem::engine
