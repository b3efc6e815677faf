#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/formats/model_dir.h"

namespace tandem::engine {

// A model whose tensors are known by type and shape alone: for plans before a download. Its weights
// read as zeros and take address space, no memory. Movable.
class WeightlessModel {
 public:
  // A file of which only the beginning is known: the header of a safetensors or GGUF file, or a
  // whole text. The rest reads as zeros.
  struct File {
    std::string name;
    std::string head;
    uint64_t bytes = 0;  // of the whole file
  };
  // A Hugging Face directory of these files, or one GGUF file. Throws like ModelDir::Open, and
  // kResourceExhausted when the system has no such address space.
  static WeightlessModel FromFiles(const std::string& name, const std::vector<File>& files);
  // The tensors that a config.json implies, in the dtype that it names, else bf16. A quantised
  // model's config does not tell its tensors: `is_quantised` is then set, and the tensors are those
  // of the plain model. Throws like FamilySpec::parse_config.
  static WeightlessModel FromConfig(const std::string& name, const std::string& config_text);

  const ModelDir& dir() const { return *dir_; }
  bool is_quantised() const { return is_quantised_; }
  uint64_t weight_file_bytes() const { return weight_file_bytes_; }

  ~WeightlessModel();
  WeightlessModel(WeightlessModel&&) noexcept;
  WeightlessModel& operator=(WeightlessModel&&) noexcept;

 private:
  class Zeros;
  WeightlessModel();

  std::vector<std::unique_ptr<Zeros>> files_;
  std::unique_ptr<const ModelDir> dir_;
  bool is_quantised_ = false;
  uint64_t weight_file_bytes_ = 0;
};

}  // namespace tandem::engine
