#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "convert/formats/maxtext/maxtext.h"
#include "convert/formats/maxtext/maxtext_arithmetic.h"
#include "convert/orbax/orbax_checkpoint.h"
#include "convert/tensors/model_source.h"
#include "engine/base/aligned_buffer.h"
#include "engine/base/parallel_for.h"

namespace tandem::convert {

// `exact/` of a checkpoint that Tandem wrote: the parts of the model that MaxText's numbers cannot
// represent. A checkpoint of MaxText has none of them. Immutable; any thread.
class MaxTextExact {
 public:
  // `root` holds the steps. `source` names the checkpoint in messages.
  MaxTextExact(const std::filesystem::path& root, std::string source);
  MaxTextExact(const MaxTextExact&) = delete;
  MaxTextExact& operator=(const MaxTextExact&) = delete;

  // The array of this name, or null.
  const OrbaxCheckpoint::Leaf* Find(const std::string& name) const;
  // Throws kDataLoss if the array has another shape.
  AlignedBuffer Read(const OrbaxCheckpoint::Leaf& leaf, const std::vector<int64_t>& shape,
                     const ParallelFor& parallel_for) const;
  // The corrections of a tensor; `room` holds their steps. None where `record` lacks its dtype.
  Corrections CorrectionsOf(const engine::NamedTensor& tensor, const MaxTextRecord& record,
                            const ParallelFor& parallel_for, AlignedBuffer* room) const;

 private:
  [[noreturn]] void Broken(const std::string& why) const;

  std::string source_;
  std::optional<OrbaxCheckpoint> checkpoint_;
  std::map<std::string, const OrbaxCheckpoint::Leaf*> leaves_;
};

}  // namespace tandem::convert
